/** Markdown of answers as DOM nodes. Text never becomes HTML, so an answer cannot run anything. */
export function renderMarkdown(source: string): DocumentFragment {
  const fragment = document.createDocumentFragment();
  const lines = source.split("\n");
  let at = 0;
  while (at < lines.length) at = block(lines, at, fragment);
  return fragment;
}

const FENCE = /^\s*(```+|~~~+)\s*([\w+#.-]*)/;
const HEADING = /^(#{1,6})\s+(.*)/;
const BULLET = /^(\s*)[-*+]\s+(.*)/;
const NUMBER = /^(\s*)(\d{1,9})[.)]\s+(.*)/;
const QUOTE = /^\s*>\s?(.*)/;
const RULE = /^\s*([-*_])(\s*\1){2,}\s*$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/** Appends the block at `lines[at]`; returns the line after it. */
function block(lines: string[], at: number, to: Node): number {
  const line = lines[at] ?? "";
  if (line.trim() === "") return at + 1;
  const fence = FENCE.exec(line);
  if (fence) return code(lines, at, fence[1] ?? "```", fence[2] ?? "", to);
  const heading = HEADING.exec(line);
  if (heading) {
    const level = Math.min(6, (heading[1]?.length ?? 1) + 2);
    append(to, `h${level}` as "h3", heading[2] ?? "");
    return at + 1;
  }
  if (RULE.test(line)) {
    to.appendChild(document.createElement("hr"));
    return at + 1;
  }
  if (BULLET.test(line) || NUMBER.test(line)) return list(lines, at, to);
  if (QUOTE.test(line)) return quote(lines, at, to);
  if (line.includes("|") && TABLE_RULE.test(lines[at + 1] ?? "")) return table(lines, at, to);
  return paragraph(lines, at, to);
}

function paragraph(lines: string[], at: number, to: Node): number {
  const text: string[] = [];
  let next = at;
  for (; next < lines.length; next += 1) {
    const line = lines[next] ?? "";
    const starts = FENCE.test(line) || HEADING.test(line) || BULLET.test(line) || NUMBER.test(line) || QUOTE.test(line);
    if (line.trim() === "" || (next > at && starts)) break;
    text.push(line);
  }
  append(to, "p", text.join("\n"));
  return next;
}

function code(lines: string[], at: number, fence: string, language: string, to: Node): number {
  const text: string[] = [];
  let next = at + 1;
  while (next < lines.length && !(lines[next] ?? "").trim().startsWith(fence)) text.push(lines[next++] ?? "");
  const figure = document.createElement("figure");
  const head = document.createElement("figcaption");
  head.textContent = language || "text";
  const copy = document.createElement("button");
  copy.type = "button";
  copy.className = "quiet";
  copy.textContent = "Copy";
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text.join("\n"));
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  head.append(copy);
  const pre = document.createElement("pre");
  const element = document.createElement("code");
  element.textContent = text.join("\n");
  pre.append(element);
  figure.append(head, pre);
  to.appendChild(figure);
  return next + 1;
}

/** A list, with lists inside its items by indentation. */
function list(lines: string[], at: number, to: Node): number {
  const first = lines[at] ?? "";
  const indent = /^\s*/.exec(first)?.[0].length ?? 0;
  const isOrdered = NUMBER.test(first);
  const element = document.createElement(isOrdered ? "ol" : "ul");
  if (isOrdered) (element as HTMLOListElement).start = Number(NUMBER.exec(first)?.[2] ?? 1);
  to.appendChild(element);
  let next = at;
  let item: HTMLLIElement | undefined;
  while (next < lines.length) {
    const line = lines[next] ?? "";
    const found = isOrdered ? NUMBER.exec(line) : BULLET.exec(line);
    const depth = /^\s*/.exec(line)?.[0].length ?? 0;
    if (line.trim() === "") {
      const after = lines[next + 1] ?? "";
      if (!(isOrdered ? NUMBER : BULLET).test(after) && !/^\s{2,}\S/.test(after)) break;
      next += 1;
    } else if (found && depth === indent) {
      item = document.createElement("li");
      inline(found[isOrdered ? 3 : 2] ?? "", item);
      element.append(item);
      next += 1;
    } else if (item && depth >= indent + 2) {
      next = block(lines.map((text, i) => (i < next ? text : text.replace(/^ {2}/, ""))), next, item);
    } else {
      break;
    }
  }
  return Math.max(next, at + 1);
}

function quote(lines: string[], at: number, to: Node): number {
  const inner: string[] = [];
  let next = at;
  for (; next < lines.length; next += 1) {
    const found = QUOTE.exec(lines[next] ?? "");
    if (!found) break;
    inner.push(found[1] ?? "");
  }
  const element = document.createElement("blockquote");
  element.append(renderMarkdown(inner.join("\n")));
  to.appendChild(element);
  return next;
}

function table(lines: string[], at: number, to: Node): number {
  const cells = (line: string) => line.trim().replace(/^\||\|$/g, "").split("|");
  const element = document.createElement("table");
  const row = (line: string, tag: "th" | "td") => {
    const tr = document.createElement("tr");
    for (const cell of cells(line)) append(tr, tag, cell.trim());
    return tr;
  };
  const head = document.createElement("thead");
  head.append(row(lines[at] ?? "", "th"));
  const body = document.createElement("tbody");
  let next = at + 2;
  for (; next < lines.length && (lines[next] ?? "").includes("|"); next += 1) body.append(row(lines[next] ?? "", "td"));
  element.append(head, body);
  const frame = document.createElement("div");
  frame.className = "table";
  frame.append(element);
  to.appendChild(frame);
  return next;
}

function append<K extends keyof HTMLElementTagNameMap>(to: Node, tag: K, text: string): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  inline(text, element);
  to.appendChild(element);
  return element;
}

const INLINE = /(`+)(.+?)\1|\*\*(.+?)\*\*|__(.+?)__|\*([^*\s][^*]*?)\*|~~(.+?)~~|\[([^\]]+)\]\(([^)\s]+)\)|(https?:\/\/[^\s<>()]+)/s;

/** Appends text with emphasis, code and links. */
function inline(text: string, to: Element): void {
  let rest = text;
  for (;;) {
    const found = INLINE.exec(rest);
    if (!found) break;
    to.append(rest.slice(0, found.index));
    const [whole, , codeText, bold, bold2, italic, deleted, label, target, address] = found;
    if (codeText !== undefined) {
      const element = document.createElement("code");
      element.textContent = codeText;
      to.append(element);
    } else if (bold !== undefined || bold2 !== undefined) {
      nested("strong", bold ?? bold2 ?? "", to);
    } else if (italic !== undefined) {
      nested("em", italic, to);
    } else if (deleted !== undefined) {
      nested("del", deleted, to);
    } else {
      link(label ?? address ?? "", target ?? address ?? "", to);
    }
    rest = rest.slice(found.index + whole.length);
  }
  to.append(rest);
}

function nested(tag: "strong" | "em" | "del", text: string, to: Element): void {
  const element = document.createElement(tag);
  inline(text, element);
  to.append(element);
}

function link(label: string, target: string, to: Element): void {
  // Other schemes, such as javascript:, stay text.
  if (!/^https?:\/\//i.test(target)) {
    to.append(label);
    return;
  }
  const element = document.createElement("a");
  element.href = target;
  element.rel = "noopener noreferrer";
  element.target = "_blank";
  element.textContent = label;
  to.append(element);
}
