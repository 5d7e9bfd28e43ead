// Keyboard, copying, local times and confirmations. Every page can be read without this file.
"use strict";
(() => {
  const base = document.body.dataset.base;
  let waitsForLetter = false;

  const typing = (element) => element.closest("input, textarea, select, [contenteditable]");
  const rows = () => [...document.querySelectorAll("tr[data-row]")].filter((row) => row.checkVisibility());

  function move(step) {
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex((row) => row.contains(document.activeElement));
    const next = all[Math.max(0, Math.min(all.length - 1, at + step))];
    next.querySelector("a.row")?.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  }

  function go(letter) {
    const link = [...document.querySelectorAll("a[data-go]")].find((one) => one.dataset.go === letter);
    if (link) location.href = link.href;
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    if (waitsForLetter) {
      waitsForLetter = false;
      go(event.key);
      return;
    }
    const search = document.getElementById("search");
    if (event.key === "/") {
      event.preventDefault();
      if (search) { search.focus(); search.select(); } else { location.href = `${base}/jobs`; }
    } else if (event.key === "g") {
      waitsForLetter = true;
      setTimeout(() => { waitsForLetter = false; }, 1500);
    } else if (event.key === "j") { move(1); }
    else if (event.key === "k") { move(-1); }
    else if (event.key === "?") { document.getElementById("keys")?.showModal(); }
  });

  document.addEventListener("click", (event) => {
    const copied = event.target.closest("[data-copy]");
    if (!copied || !navigator.clipboard) return;
    navigator.clipboard.writeText(copied.dataset.copy).then(() => {
      copied.title = "Copied";
      setTimeout(() => { copied.title = copied.dataset.copy; }, 1500);
    }, () => {});
  });

  document.addEventListener("submit", (event) => {
    const question = event.target.dataset.confirm;
    if (question && !confirm(question)) event.preventDefault();
  });

  // Completion offers terms for the word at the end; the browser compares the whole text, so each begins with it.
  document.addEventListener("input", (event) => {
    const list = event.target.id === "search" && event.target.list;
    if (!list) return;
    const before = event.target.value.replace(/\S*$/, "");
    for (const option of list.options) {
      option.dataset.term ??= option.value;
      option.value = before + option.dataset.term;
    }
  });

  function unfold() {
    const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    if (target && target.tagName === "DETAILS") target.open = true;
  }
  addEventListener("hashchange", unfold);
  unfold();

  // Times are written in UTC by the server; here they are also said in the viewer's own zone.
  function localise(root) {
    root.querySelectorAll("time[datetime]").forEach((time) => {
      const at = new Date(time.dateTime);
      const local = at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
      const utc = `${at.toISOString().slice(0, 19).replace("T", " ")} UTC`;
      if (time.hasAttribute("data-local")) time.textContent = `${local} · ${utc}`;
      time.title = `${local} · ${utc}`;
    });
  }
  localise(document);
  document.addEventListener("htmx:after:swap", () => localise(document));

  // "3 s ago" goes on while nothing changes; the server's clock decides, and the words are those of text.py.
  const THIN = "\u202f";
  const UNITS = [["d", 86400], ["h", 3600], ["m", 60]];
  let ahead = new Date(document.body.dataset.now) - Date.now(); // less than it is, by the time the page took

  function away(at) {
    const distance = at - Date.now() - ahead;
    const seconds = Math.floor(Math.abs(distance) / 1000);
    if (seconds < 1) return "now";
    const place = UNITS.findIndex(([, size]) => seconds >= size);
    let said = `${seconds}${THIN}s`;
    if (place >= 0) {
      const [unit, size] = UNITS[place];
      const [smaller, step] = UNITS[place + 1] ?? ["s", 1];
      const rest = String(Math.floor((seconds % size) / step)).padStart(2, "0");
      said = `${Math.floor(seconds / size)}${THIN}${unit} ${rest}${THIN}${smaller}`;
    }
    return distance > 0 ? `in ${said}` : `${said} ago`;
  }
  setInterval(() => {
    if (document.hidden) return;
    const heard = document.querySelector("#heard time");
    if (heard) ahead = Math.max(ahead, new Date(heard.dateTime) - Date.now());
    document.querySelectorAll("time[datetime]:not([data-local])").forEach((time) => {
      const said = away(new Date(time.dateTime));
      if (time.textContent !== said) time.textContent = said;
    });
  }, 1000);

  // In a narrow window the side bar is a row that scrolls: begin where the present page is.
  document.querySelector("#nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

  // A live update must not undo what is being typed or chosen.
  document.addEventListener("htmx:before:request", (event) => {
    const main = document.getElementById("main");
    const source = event.detail?.ctx?.sourceElement ?? event.target;
    if (source !== main) return;
    const busy = main.querySelector("input:checked, details.fold[open], textarea:focus, input:focus");
    if (busy) event.preventDefault();
  });
})();
