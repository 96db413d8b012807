// Names rows of charts, finds runs and problems, asks for pages anew while runs go on, listens to keys.
// Pages can be read without it. It inserts text, or this server's own pages, in which all text of runs is text.
"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const shown = (text) => text.replace(
    /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]/g,
    (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );

  // Charts with a row for each chain.
  const tip = document.createElement("span");
  tip.className = "tip";
  const rowOf = (panel, event) => {
    const names = JSON.parse(panel.dataset.rows), box = panel.getBoundingClientRect();
    return names[Math.min(names.length - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * names.length)))];
  };
  document.addEventListener("pointermove", (event) => {
    const panel = event.target.closest("[data-rows]");
    if (!panel) return tip.remove();
    const box = panel.getBoundingClientRect();
    tip.textContent = shown(rowOf(panel, event));
    tip.style.top = `${event.clientY - box.top}px`;
    tip.style.left = `${event.clientX - box.left}px`;
    panel.append(tip);
    const over = tip.getBoundingClientRect().right - document.documentElement.clientWidth;
    if (over > 0) tip.style.left = `${event.clientX - box.left - over - 16}px`;
  });
  document.addEventListener("click", (event) => {
    const panel = event.target.closest("[data-rows]"), run = document.body.dataset.run;
    if (!panel) return;
    const chain = rowOf(panel, event);
    if (run) location.href = `/chain?${new URLSearchParams({ run, chain })}`;
    const place = all("[data-chain]", panel.closest("article") || document).find((each) => each.dataset.chain === shown(chain));
    place?.querySelectorAll("details:first-child").forEach((each) => { each.open = true; });
    place?.scrollIntoView();
  });

  // Finding runs, and problems of a page in a file.
  const find = () => all("form[data-filters]").forEach((form) => {
    const list = document.getElementById(form.dataset.filters);
    const { verdict, order, search } = Object.fromEntries(new FormData(form)), wanted = search.trim().toLowerCase();
    [...list.children].sort((a, b) => a.dataset[order] - b.dataset[order] || a.dataset.input - b.dataset.input).forEach((item) => {
      const text = (item.querySelector(".row") || item).textContent.toLowerCase();
      item.hidden = Boolean(verdict && item.dataset.verdict !== verdict) || !text.includes(wanted);
      list.append(item);
    });
  });
  document.addEventListener("input", find);
  document.addEventListener("change", (event) => {
    const form = event.target.form;
    if (form && !("filters" in form.dataset) && event.target.type !== "search") form.requestSubmit();
  });
  document.addEventListener("submit", (event) => { if ("filters" in event.target.dataset) event.preventDefault(); });
  window.addEventListener("pageshow", find);

  // Pages of runs that go on, or whose figures take longer. Whoever types or reads what they have opened is not disturbed.
  const EVERY_MS = 2000, whole = new URL(location);
  whole.searchParams.set("figures", "yes");
  const asked = async () => new DOMParser().parseFromString(await (await fetch(whole)).text(), "text/html");
  const isAtRest = () => !document.hidden && document.activeElement === document.body && !document.querySelector("details[open]");
  const follow = async () => {
    const found = isAtRest() ? await asked().catch(() => null) : null;
    if (found && isAtRest()) {
      document.querySelector("main").replaceWith(document.adoptNode(found.querySelector("main")));
      find();
      if (!("active" in found.body.dataset)) return;
    }
    setTimeout(follow, EVERY_MS);
  };
  if ("active" in document.body.dataset) setTimeout(follow, EVERY_MS);

  // Keys: / searches, j and k or arrows turn pages and chains.
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select")) return;
    const goes = { j: "next", ArrowRight: "next", k: "prev", ArrowLeft: "prev" }[event.key];
    if (goes && !event.target.closest(".wide")) document.querySelector(`a[rel=${goes}]`)?.click();
    if (event.key === "/") {
      event.preventDefault();
      document.querySelector("input[type=search]")?.focus();
    }
  });
})();
