"use strict";
// What a page does beside its HTML: the age of its figures, copy buttons, the search box, values of sliders.

const shownAt = new WeakMap();

const span = (seconds) =>
  seconds < 120 ? `${Math.floor(seconds)} s` : seconds < 7200 ? `${Math.floor(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h`;

// The server gives the age at the time of its answer, and it grows here, so that it grows also if the server hangs.
function showAge() {
  const line = document.getElementById("age");
  if (line === null || line.dataset.age === undefined) {
    return;
  }
  if (!shownAt.has(line)) {
    shownAt.set(line, performance.now());
  }
  const age = Number(line.dataset.age) + (performance.now() - shownAt.get(line)) / 1000;
  const isLost = document.querySelector(".banner:not(:empty)") !== null;
  const isOld = !isLost && line.dataset.mode === "live" && age >= 10;
  const word = { live: isLost ? "Not live, read" : isOld ? "Read" : "Live, read", paused: "Paused, read" }[line.dataset.mode] ?? "Read";
  const [first, more] = [word.split(",")[0], word.includes(",") ? `, read ${span(age)} ago` : ` ${span(age)} ago`];
  line.classList.toggle("lost", isLost);
  line.classList.toggle("old", isOld);
  const rest = document.createElement("span");
  rest.className = word === "Read" ? "" : "more";
  rest.textContent = more;
  const words = document.createElement("span");
  words.append(first, rest);
  line.replaceChildren(words);
}

// Where the page's program does not answer, nothing on the page is live.
function programIsGone(isGone) {
  const banner = document.getElementById("gone");
  if (banner === null || isGone === banner.hasChildNodes()) {
    return;
  }
  const inner = document.createElement("div");
  inner.className = "inner";
  const since = new Date().toISOString().slice(11, 19);
  const words = document.createElement("b");
  words.textContent = `'dynastate ui' has not answered since ${since} UTC.`;
  inner.append(words, " Figures do not change. Start it again, and open the URL that it prints.");
  banner.replaceChildren(...(isGone ? [inner] : []));
  showAge();
}

// A table whose rows are cards on a narrow screen stays a table for a screen reader.
function setRoles() {
  const roles = { table: "table", thead: "rowgroup", tbody: "rowgroup", tr: "row", td: "cell" };
  for (const table of document.querySelectorAll("table.cards:not([role])")) {
    for (const [name, role] of Object.entries(roles)) {
      for (const element of name === "table" ? [table] : table.querySelectorAll(name)) {
        element.setAttribute("role", role);
      }
    }
    for (const head of table.querySelectorAll("th")) {
      head.setAttribute("role", head.scope === "row" ? "rowheader" : "columnheader");
    }
  }
}

function search() {
  const text = document.getElementById("search")?.value.toLowerCase() ?? "";
  for (const part of document.querySelectorAll("[data-search]")) {
    part.hidden = !part.dataset.search.toLowerCase().includes(text);
  }
}

// Details that are open stay so when the live part is read again.
const open = new Set();

function prepare() {
  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = false;
  }
  for (const details of document.querySelectorAll("details[id]")) {
    if (open.has(details.id)) {
      details.open = true;
    }
  }
  setRoles();
  search();
  showAge();
}

async function copy(button) {
  const code = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(code);
    button.textContent = "Press Ctrl-C";
  }
  setTimeout(() => {
    button.textContent = "Copy";
  }, 2000);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("button.copy");
  if (button) {
    copy(button);
  }
});

document.addEventListener("toggle", (event) => {
  if (event.target.id) {
    event.target.open ? open.add(event.target.id) : open.delete(event.target.id);
  }
}, true);

document.addEventListener("input", (event) => {
  if (event.target.id === "search") {
    search();
  }
  const output = event.target.type === "range" ? event.target.parentElement.querySelector("output") : null;
  if (output) {
    output.textContent = event.target.value;
  }
});

document.addEventListener("keydown", (event) => {
  const box = document.getElementById("search");
  if (event.key === "/" && box && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) {
    event.preventDefault();
    box.focus();
  }
});

for (const event of ["htmx:sendError", "htmx:timeout"]) {
  document.addEventListener(event, () => programIsGone(true));
}
document.addEventListener("htmx:afterOnLoad", () => programIsGone(false));
document.addEventListener("htmx:afterSettle", prepare);
setInterval(showAge, 1000);
prepare();
