(function () {
  "use strict";
  const all = (root, selector) => Array.from(root.querySelectorAll(selector));

  // Light, dark, or as the system has it; remembered where the browser lets a file remember.
  const themes = ["auto", "light", "dark"];
  const remember = (theme) => { try { localStorage.setItem("sightline-theme", theme); } catch (error) { /* not here */ } };
  const recall = () => { try { return localStorage.getItem("sightline-theme"); } catch (error) { return null; } };
  const applyTheme = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    all(document, ".theme").forEach((button) => {
      button.textContent = "Theme: " + theme;
      button.dataset.now = theme;
    });
  };
  applyTheme(themes.includes(recall()) ? recall() : "auto");
  all(document, ".theme").forEach((button) => button.addEventListener("click", () => {
    const next = themes[(themes.indexOf(button.dataset.now) + 1) % themes.length];
    applyTheme(next);
    remember(next);
  }));

  all(document, ".tabs").forEach((tabs) => {
    const buttons = all(tabs, "[role=tab]");
    const choose = (chosen) => buttons.forEach((button) => {
      button.setAttribute("aria-selected", String(button === chosen));
      button.tabIndex = button === chosen ? 0 : -1;
      document.getElementById(button.getAttribute("aria-controls")).hidden = button !== chosen;
    });
    buttons.forEach((button) => button.addEventListener("click", () => choose(button)));
    tabs.addEventListener("keydown", (event) => {
      const now = buttons.indexOf(document.activeElement);
      const next = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: buttons.length - 1 }[event.key];
      if (next === undefined) return;
      const button = buttons[(next + buttons.length) % buttons.length];
      choose(button);
      button.focus();
      event.preventDefault();
    });
    choose(buttons[0]);
  });

  const sort = (table, column, direction) => {
    const body = table.tBodies[0];
    const value = (row) => row.cells[column].dataset.value || "";
    const compare = (a, b) => {
      const x = value(a), y = value(b);
      if (x === "" || y === "") return (x === "") - (y === "");
      const numbers = [Number(x), Number(y)];
      return direction * (numbers.some(Number.isNaN) ? x.localeCompare(y) : numbers[0] - numbers[1]);
    };
    Array.from(body.rows).sort(compare).forEach((row) => body.appendChild(row));
  };
  all(document, "table.sortable").forEach((table) => {
    const heads = all(table, "thead th");
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const first = head.dataset.first || "ascending";
        const next = now ? (now === "ascending" ? "descending" : "ascending") : first;
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", next);
        sort(table, column, next === "ascending" ? 1 : -1);
      });
    });
  });

  all(document, ".hide-overlays").forEach((button) => button.addEventListener("click", () => {
    const hidden = button.closest("section").classList.toggle("no-overlays");
    button.setAttribute("aria-pressed", String(hidden));
  }));

  all(document, ".copy").forEach((button) => {
    const label = button.textContent;
    button.addEventListener("click", () => {
      const source = button.parentElement.querySelector("pre");
      const select = () => window.getSelection().selectAllChildren(source);
      const done = () => { button.textContent = "Copied"; setTimeout(() => { button.textContent = label; }, 1500); };
      if (navigator.clipboard) navigator.clipboard.writeText(source.textContent).then(done, select); else select();
    });
  });
})();
