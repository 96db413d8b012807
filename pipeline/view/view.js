// Brings pages up to date while runs go on, fetches their slow parts, and listens to keys. Pages work without it; what it puts in comes
// from this server's own pages, in which all text of runs is text.
"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const parsed = async (url) => {
    const answer = await fetch(url);
    return [answer.ok, new DOMParser().parseFromString(await answer.text(), "text/html")];
  };

  // What goes on. An element marked `data-live` is replaced by the one of the same mark, what was chosen in it stays chosen.
  const EVERY_MS = 2000, IDLE_MS = 15000;
  const marked = (within) => new Map(all("[data-live]", within).map((each) => [each.dataset.live, each]));
  const chosen = () => new Set(all("input:checked[type=checkbox]").map((each) => each.value));
  const known = (element) => element && (element.getAttribute("href") || element.value);
  const replace = (found) => {
    const kept = chosen(), focused = known(document.activeElement);
    const now = marked(found);
    marked(document).forEach((old, mark) => {
      const held = old.contains(document.activeElement);
      if (!now.has(mark) || old.outerHTML === now.get(mark).outerHTML) return;
      const next = document.adoptNode(now.get(mark));
      old.replaceWith(next);
      all("input[type=checkbox]", next).forEach((box) => { box.checked = kept.has(box.value); });
      if (held) all("a, input", next).find((each) => known(each) === focused)?.focus();
    });
    counted();
    find();
  };
  const lost = document.getElementById("offline");
  const look = async () => {
    if (!document.hidden) {
      try {
        const [fine, found] = await parsed(location.href);
        lost.hidden = fine;
        if (!fine) lost.textContent = `no longer shown: ${found.querySelector(".notice")?.textContent || "an error"}`;
        else {
          if ("active" in document.body.dataset && !("active" in found.body.dataset)) return void location.reload();
          if ("active" in found.body.dataset) document.body.dataset.active = "";
          replace(found);
        }
      } catch {
        lost.hidden = false;
        lost.textContent = "no longer connected";
      }
    }
    setTimeout(look, "active" in document.body.dataset ? EVERY_MS : IDLE_MS);
  };

  // Choosing runs, and finding one by its name.
  const counted = () => all("button[data-least]").forEach((button) => {
    const count = chosen().size;
    button.disabled = count < Number(button.dataset.least) || count > Number(button.dataset.most);
  });
  const find = () => all("input[data-filters]").forEach((input) => {
    const wanted = input.value.trim().toLowerCase();
    all("tbody tr", document.getElementById(input.dataset.filters)).forEach((row) => {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
  });
  document.addEventListener("change", (event) => {
    counted();
    const form = event.target.form;
    if (form && "submits" in form.dataset && event.target.type !== "search") form.requestSubmit();
  });
  document.addEventListener("input", find);
  document.addEventListener("submit", (event) => {  // an address without what is empty
    all("input, select", event.target).forEach((each) => { if (each.value === "" && each.type !== "checkbox") each.disabled = true; });
  });
  window.addEventListener("pageshow", () => { all("form input:disabled[type=search], form input:disabled[type=radio], form select:disabled").forEach((each) => { each.disabled = false; }); counted(); find(); });

  // Parts that take longer than their page.
  all("details[data-part]").forEach((place) => place.addEventListener("toggle", async () => {
    if (!place.open || place.dataset.fetched) return;
    place.dataset.fetched = "yes";
    const said = place.querySelector(".note");
    try {
      const [fine, found] = await parsed(place.dataset.part);
      const part = found.getElementById("part");
      if (fine && part) said.replaceWith(document.adoptNode(part));
      else said.textContent = found.querySelector(".notice")?.textContent || "cannot be shown";
    } catch {
      delete place.dataset.fetched;
      said.textContent = "not answered; close and open this again";
    }
  }));

  // Keys: / searches, j and k or arrows turn pages and chains.
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.matches("textarea")) event.target.form.requestSubmit();
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    const goes = { j: "next", ArrowRight: "next", k: "prev", ArrowLeft: "prev" }[event.key];
    if (goes && !event.target.closest(".plot, .wide")) document.querySelector(`a[rel=${goes}]`)?.click();
    if (event.key === "/") {
      event.preventDefault();
      document.querySelector("input[type=search]")?.focus();
    }
  });

  counted();
  if ("active" in document.body.dataset || document.getElementById("runs")) setTimeout(look, "active" in document.body.dataset ? EVERY_MS : IDLE_MS);
})();
