"use strict";
const runs = JSON.parse(document.getElementById("runs").textContent);
const tip = document.getElementById("tip");
let current = null;

// The tooltip of a bar, dot or point: its value, and where the value is from.
function show(target) {
  hide();
  const run = runs[target.dataset.run];
  if (!run) return;
  const line = (kind, name, text) => {
    if (!text) return;
    const part = document.createElement(kind);
    part.className = name;
    part.textContent = text;
    tip.append(part);
  };
  tip.replaceChildren();
  line("strong", "", target.dataset.label);
  line("span", "", run.title);
  line("span", "more", `Commit ${run.commit}, ${run.date}`);
  line("span", "more", run.machine);
  line("span", "more", `Command: ${run.command}`);
  line("span", "more", run.note);
  tip.hidden = false;
  current = target;
  target.classList.add("now");
  const at = target.getBoundingClientRect();
  const box = tip.getBoundingClientRect();
  const left = Math.min(Math.max(12, at.left + at.width / 2 - box.width / 2), innerWidth - box.width - 12);
  const above = at.top - box.height - 10;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 8 ? above : at.bottom + 10}px`;
}

function hide() {
  tip.hidden = true;
  if (current) current.classList.remove("now");
  current = null;
}

const marked = (event) => (event.target instanceof Element ? event.target.closest("[data-label]") : null);
addEventListener("pointerover", (event) => (marked(event) ? show(marked(event)) : hide()));
addEventListener("click", (event) => (marked(event) ? show(marked(event)) : hide()));
addEventListener("scroll", hide, { passive: true });

// Arrow keys walk through the points of a chart that has the focus.
for (const chart of document.querySelectorAll(".chart")) {
  const points = [...chart.querySelectorAll(".point")];
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") hide();
    if (!step) return;
    event.preventDefault();
    const at = points.indexOf(current);
    show(points[at < 0 ? (step > 0 ? 0 : points.length - 1) : (at + step + points.length) % points.length]);
  });
  chart.addEventListener("blur", hide);
}

const machine = document.getElementById("machine");
if (machine) {
  machine.addEventListener("change", () => {
    for (const block of document.querySelectorAll(".machine")) {
      block.hidden = machine.value !== "" && block.dataset.machine !== machine.value;
    }
  });
}

const theme = document.getElementById("theme");
theme.addEventListener("change", () => {
  if (theme.value) document.documentElement.dataset.theme = theme.value;
  else delete document.documentElement.dataset.theme;
});
