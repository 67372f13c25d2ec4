// The API reference: endpoints of the OpenAPI document with their fields, and a form to try them.

const settings = JSON.parse(localStorage.getItem("oxidize.settings") ?? "{}");
document.documentElement.dataset.theme =
  settings.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

const element = (name, className, ...children) => {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
};

const document_ = await (await fetch("/openapi.json")).json();
const about = (field) => field.description ?? (field.oneOf ?? []).map(({ description }) => description).find(Boolean) ?? "";
const resolve = (schema) =>
  schema?.$ref ? document_.components.schemas[schema.$ref.split("/").at(-1)] : schema;

/** All fields of an object, with those of its allOf parts. */
function fields(schema) {
  const found = resolve(schema) ?? {};
  const own = Object.entries(found.properties ?? {}).map(([name, field]) => ({
    name, field, required: found.required?.includes(name),
  }));
  return [...(found.allOf ?? []).flatMap(fields), ...own];
}

function kind(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  const choices = schema.oneOf ?? schema.anyOf;
  if (choices) return choices.map(kind).filter((name) => name && name !== "null").join(" or ");
  const type = [schema.type].flat().filter((name) => name && name !== "null").join(" or ");
  return type === "array" ? `${kind(schema.items)}[]` : type;
}

function endpoint(method, path, operation) {
  const made = element("details", "endpoint");
  made.append(element("summary", "",
    element("span", "method", method.toUpperCase()), element("span", "path", path), element("span", "sum", operation.summary ?? "")));
  const inside = element("div", "inside");
  if (operation.description) inside.append(element("p", "", operation.description));
  const body = operation.requestBody?.content["application/json"]?.schema;
  const rows = [...fields(body), ...(operation.parameters ?? []).map((p) => ({ name: p.name, field: { ...p.schema, description: p.description }, required: p.required }))];
  if (rows.length) {
    inside.append(element("h4", "", "Fields"), element("table", "", ...rows.map(({ name, field, required }) =>
      element("tr", "", element("td", "", required ? `${name} *` : name), element("td", "", kind(field)), element("td", "", about(field))))));
  }
  inside.append(element("h4", "", "Responses"), element("table", "", ...Object.entries(operation.responses).map(([status, response]) =>
    element("tr", "", element("td", "", status), element("td", "", Object.keys(response.content ?? {}).join(", ")), element("td", "", response.description)))));
  if (!path.includes("{")) inside.append(trial(method, path, body));
  made.append(inside);
  return made;
}

const EXAMPLES = {
  messages: [{ role: "user", content: "Say hello." }], prompt: "Once upon a time", input: "Say hello.", query: "What is rust?",
  documents: ["Iron oxide.", "A fish."], content: "Hello", tokens: [1, 2, 3], max_tokens: 32,
};

function trial(method, path, body) {
  const made = element("div", "", element("h4", "", "Try it"));
  const example = Object.fromEntries(fields(body).filter(({ name, required }) => required || name === "max_tokens").map(({ name }) => [name, EXAMPLES[name] ?? ""]));
  const text = element("textarea");
  text.value = JSON.stringify(example, null, 2);
  const out = element("pre");
  out.hidden = true;
  const run = element("button", "primary", "Send");
  run.type = "button";
  run.addEventListener("click", async () => {
    out.hidden = false;
    out.textContent = "…";
    const headers = { "Content-Type": "application/json", ...(settings.key ? { Authorization: `Bearer ${settings.key}` } : {}) };
    try {
      const response = await fetch(path, { method, headers, body: method === "post" ? text.value : undefined });
      const answer = await response.text();
      let shown = answer;
      try { shown = JSON.stringify(JSON.parse(answer), null, 2); } catch { /* not JSON: shown unchanged */ }
      out.textContent = `${response.status}\n${shown}`;
    } catch (error) {
      out.textContent = error.message;
    }
  });
  if (method === "post") made.append(text);
  made.append(run, out);
  return made;
}

const groups = new Map(["OpenAI", "Anthropic", "llama-server", "Ollama"].map((tag) => [tag, []]));
for (const [path, operations] of Object.entries(document_.paths)) {
  for (const [method, operation] of Object.entries(operations)) {
    const tag = operation.tags?.[0] ?? "Other";
    if (!groups.has(tag)) groups.set(tag, []);
    groups.get(tag).push(endpoint(method, path, operation));
  }
}
for (const [tag, list] of groups) {
  document.getElementById("endpoints").append(element("h2", "", tag), ...list);
}
