// Asks for pages anew while runs go on, fetches their slow parts, and listens to keys. Pages work without it; all it inserts comes from
// this server's own pages, in which all text of runs is text.
"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  // A run goes on. Whoever types, goes by keyboard or reads what they have opened is not disturbed.
  const EVERY_MS = 2000, isAtRest = () => document.activeElement === document.body && !document.querySelector("details[open]");
  if ("active" in document.body.dataset) setInterval(() => { if (!document.hidden && isAtRest()) location.reload(); }, EVERY_MS);

  // Finding a run by its name.
  const find = () => all("input[data-filters]").forEach((input) => {
    const wanted = input.value.trim().toLowerCase();
    all("tbody tr", document.getElementById(input.dataset.filters)).forEach((row) => {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
  });
  document.addEventListener("input", find);
  document.addEventListener("change", (event) => {
    const form = event.target.form;
    if (form && "submits" in form.dataset && event.target.type !== "search") form.requestSubmit();
  });
  document.addEventListener("submit", (event) => {  // an address without what is empty
    all("input, select", event.target).forEach((each) => { if (each.value === "") each.disabled = true; });
  });
  window.addEventListener("pageshow", () => { all("form :disabled").forEach((each) => { each.disabled = false; }); find(); });

  // Parts that take longer than their page.
  all("details[data-part]").forEach((place) => place.addEventListener("toggle", async () => {
    if (!place.open || place.dataset.fetched) return;
    place.dataset.fetched = "yes";
    const said = place.querySelector(".note");
    try {
      const answer = await fetch(place.dataset.part);
      const found = new DOMParser().parseFromString(await answer.text(), "text/html");
      const part = found.getElementById("part");
      if (answer.ok && part) said.replaceWith(document.adoptNode(part));
      else said.textContent = found.querySelector(".notice")?.textContent || "cannot be shown";
    } catch {
      delete place.dataset.fetched;
      said.textContent = "not answered; close and open this again";
    }
  }));

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
