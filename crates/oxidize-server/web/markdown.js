// Renders markdown as elements. Model output is never parsed as HTML: only createElement and textContent are used.

const element = (name, className, ...children) => {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
};

/** The elements of a markdown text. */
export function render(text) {
  const out = document.createDocumentFragment();
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  blocks(lines, out);
  return out;
}

function blocks(lines, out) {
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = line.match(/^\s*(`{3,}|~{3,})\s*([\w+#.-]*)/);
    const heading = line.match(/^(#{1,6})\s+(.*)/);
    if (fence) {
      const body = [];
      at += 1;
      while (at < lines.length && !lines[at].trim().startsWith(fence[1])) body.push(lines[at++]);
      at += 1;
      out.append(code(body.join("\n"), fence[2]));
    } else if (!line.trim()) {
      at += 1;
    } else if (heading) {
      const made = element(`h${Math.min(heading[1].length, 4)}`);
      inline(heading[2], made);
      out.append(made);
      at += 1;
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      out.append(element("hr"));
      at += 1;
    } else if (/^\s*>/.test(line)) {
      const body = [];
      while (at < lines.length && /^\s*>/.test(lines[at])) body.push(lines[at++].replace(/^\s*> ?/, ""));
      const made = element("blockquote");
      blocks(body, made);
      out.append(made);
    } else if (bullet(line)) {
      at = list(lines, at, out);
    } else if (line.includes("|") && /^\s*\|?\s*:?-{2,}/.test(lines[at + 1] || "")) {
      at = table(lines, at, out);
    } else {
      const body = [];
      while (at < lines.length && lines[at].trim() && !starts(lines[at])) body.push(lines[at++]);
      if (!body.length) body.push(lines[at++]);
      const made = element("p");
      inline(body.join("\n"), made);
      out.append(made);
    }
  }
}

const bullet = (line) => line.match(/^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)/);
const starts = (line) => /^\s*(`{3}|~{3}|>)|^#{1,6}\s/.test(line) || bullet(line);

function list(lines, at, out) {
  const first = bullet(lines[at]);
  const indent = first[1].length;
  const ordered = /\d/.test(first[2]);
  const made = element(ordered ? "ol" : "ul");
  if (ordered) made.start = parseInt(first[2], 10);
  while (at < lines.length) {
    const item = bullet(lines[at]);
    if (!item || item[1].length !== indent || /\d/.test(item[2]) !== ordered) break;
    const body = [item[3]];
    at += 1;
    // Lines with deeper indentation, and blank lines before them, belong to the item.
    while (at < lines.length) {
      const deeper = lines[at].match(/^(\s*)\S/);
      const next = lines[at + 1]?.match(/^(\s*)\S/);
      if (deeper ? deeper[1].length <= indent : !(next && next[1].length > indent)) break;
      body.push(lines[at].slice(Math.min(indent + 2, lines[at].length - lines[at].trimStart().length)));
      at += 1;
    }
    const entry = element("li");
    if (body.length === 1) inline(body[0], entry);
    else blocks(body, entry);
    made.append(entry);
  }
  out.append(made);
  return at;
}

function table(lines, at, out) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|");
  const row = (line, kind) => {
    const made = element("tr");
    for (const cell of cells(line)) {
      const entry = element(kind);
      inline(cell.trim(), entry);
      made.append(entry);
    }
    return made;
  };
  const made = element("table", "", row(lines[at], "th"));
  for (at += 2; at < lines.length && lines[at].includes("|"); at += 1) made.append(row(lines[at], "td"));
  out.append(made);
  return at;
}

const INLINE = /(`+)([\s\S]*?[^`])\1(?!`)|\*\*([^*\n]+?)\*\*|__([^_\n]+?)__|\*([^*\s][^*\n]*?)\*|~~([^~\n]+?)~~|\[([^\]\n]+)\]\(([^)\s]+)\)|(https?:\/\/[^\s<>)\]]+[^\s<>)\].,;:!?])/;

function inline(text, out) {
  let rest = text;
  for (let found = rest.match(INLINE); found; found = rest.match(INLINE)) {
    plain(rest.slice(0, found.index), out);
    const [whole, , code, bold, bold2, italic, struck, label, target, address] = found;
    if (code !== undefined) out.append(element("code", "", code.trim() || code));
    else if (bold ?? bold2) out.append(nested("strong", bold ?? bold2));
    else if (italic) out.append(nested("em", italic));
    else if (struck) out.append(nested("s", struck));
    else out.append(link(label ?? address, target ?? address));
    rest = rest.slice(found.index + whole.length);
  }
  plain(rest, out);
}

function nested(name, text) {
  const made = element(name);
  inline(text, made);
  return made;
}

function link(label, target) {
  // Only schemes that cannot run scripts become links.
  if (!/^(https?:|mailto:)/i.test(target)) return document.createTextNode(`${label} (${target})`);
  const made = element("a", "", label);
  Object.assign(made, { href: target, target: "_blank", rel: "noopener noreferrer" });
  return made;
}

function plain(text, out) {
  text.split("\n").forEach((line, index) => {
    if (index) out.append(element("br"));
    if (line) out.append(line);
  });
}

function code(text, language) {
  const copy = element("button", "", "Copy");
  copy.type = "button";
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1200);
  });
  const body = element("code");
  highlight(text, body);
  return element("div", "code", element("header", "", element("span", "", language || "text"), copy), element("pre", "", body));
}

const KEYWORDS = new Set(("as async await break case catch class const continue def del do elif else enum except export extends " +
  "extern false finally fn for from function if impl import in interface is lambda let loop match mod mut new nil none not null " +
  "or pass pub raise return self static struct super switch this throw trait true try type undefined union unsafe use var void " +
  "where while with yield and package public private protected int float double bool char string None True False").split(" "));
const TOKENS = /(\/\/[^\n]*|#(?![\w[!])[^\n]*|\/\*[\s\S]*?\*\/|--\s[^\n]*)|("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`)|(\b\d[\w.]*\b)|([A-Za-z_]\w*)/g;

// One set of rules for all languages: enough to distinguish keywords, strings, numbers and comments.
function highlight(text, out) {
  let last = 0;
  for (const found of text.matchAll(TOKENS)) {
    const [token, comment, string, number, word] = found;
    const kind = comment ? "t-com" : string ? "t-str" : number ? "t-num" : KEYWORDS.has(word) ? "t-kw" : "";
    if (!kind) continue;
    out.append(text.slice(last, found.index), element("span", kind, token));
    last = found.index + token.length;
  }
  out.append(text.slice(last));
}
