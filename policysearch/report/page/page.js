"use strict";
(() => {
  const d = document, all = (q, r = d) => [...r.querySelectorAll(q)];
  d.documentElement.classList.add("scripts");
  const say = (b, s) => { const t = b.textContent; b.textContent = s; setTimeout(() => { b.textContent = t; }, 1500); };
  for (const b of all("button[data-copy]")) b.addEventListener("click", async () => {
    const t = d.getElementById(b.dataset.copy);
    try { await navigator.clipboard.writeText(t.textContent); say(b, "Copied"); }
    catch { const s = getSelection(), r = d.createRange(); r.selectNodeContents(t); s.removeAllRanges(); s.addRange(r); say(b, "Selected"); }
  });
  const open = () => {
    const at = location.hash.length > 1 && d.getElementById(location.hash.slice(1));
    const box = at && at.closest("details");
    if (box) { box.open = true; box.scrollIntoView(); }
  };
  addEventListener("hashchange", open); open();
  const light = (n, on) => { for (const e of all(`[data-t="${n}"]`)) e.classList.toggle("lit", on); };
  for (const [kind, on] of [["pointerover", 1], ["pointerout", 0], ["focusin", 1], ["focusout", 0]])
    d.addEventListener(kind, e => { const t = e.target.closest && e.target.closest("[data-t]"); if (t) light(t.dataset.t, !!on); });
  addEventListener("beforeprint", () => all("details").forEach((x, i) => { if (!i) x.open = true; }));
  const wide = () => { for (const e of all(".scroll")) e.previousElementSibling.classList.toggle("over", e.scrollWidth > e.clientWidth + 1); };
  addEventListener("resize", wide); d.addEventListener("toggle", wide, true); wide();
  const data = d.getElementById("rows"), body = d.querySelector("#every tbody");
  if (!data || !body) return;
  const { head, rows, linked, name, most } = JSON.parse(data.textContent), links = new Set(linked);
  const find = d.getElementById("find"), count = d.getElementById("count");
  const hay = rows.map(r => r.join(" ").toLowerCase());
  let order = rows.map((_, i) => i), by = -1, up = true;
  const raised = n => [...String(n)].map(c => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("");
  const gap = v => {
    if (!v) return "0";
    const a = Math.abs(v), s = v < 0 ? "−" : "+";
    if (a >= 1e-3 && a < 1e4) return s + (a < 10 ? a.toPrecision(2) : a.toFixed(0));
    const [m, e] = a.toExponential(1).split("e");
    return `${s}${m}×10${raised(+e)}`;
  };
  const share = v => v > 0 && v < 5e-4 ? "<0.1%" : (100 * v).toFixed(v < 0.1 ? 1 : 0) + "%";
  const written = [null, null, gap, v => v.toFixed(2), v => v.toFixed(2), share];
  const cell = (r, i) => {
    const c = d.createElement(i ? "td" : "th");
    if (i) c.className = typeof r[i] === "number" ? "number" : ""; else c.scope = "row";
    const v = typeof r[i] === "number" && written[i] ? written[i](r[i]) : r[i];
    if (!i && links.has(r[0])) { const a = d.createElement("a"); a.href = "#t" + r[0]; a.textContent = v; c.append(a); }
    else if (i === 1) c.append(...String(v).split(/(?<=[./])/).flatMap(s => [s, d.createElement("wbr")]));
    else c.textContent = v === null ? "–" : v;
    return c;
  };
  const show = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const hits = order.filter(i => words.every(w => hay[i].includes(w)));
    body.replaceChildren(...hits.slice(0, most).map(i => {
      const tr = d.createElement("tr"); tr.dataset.t = rows[i][0];
      tr.append(...rows[i].map((_, j) => cell(rows[i], j))); return tr;
    }));
    count.textContent = `${hits.length} of ${rows.length} policies` + (hits.length > most ? `, the first ${most} shown` : "");
  };
  find.addEventListener("input", show);
  all("#every th button").forEach((b, j) => b.addEventListener("click", () => {
    up = by === j ? !up : true; by = j;
    const key = i => rows[i][j], none = v => v === null || v === "";
    order = rows.map((_, i) => i).sort((x, y) => {
      const p = key(x), q = key(y);
      if (none(p) || none(q)) return none(p) - none(q) || x - y;
      return (p < q ? -1 : p > q ? 1 : 0) * (up ? 1 : -1) || x - y;
    });
    all("#every thead th").forEach((h, k) => { if (k === j) h.setAttribute("aria-sort", up ? "ascending" : "descending"); else h.removeAttribute("aria-sort"); });
    show();
  }));
  const safe = v => { let t = v === null ? "" : String(v); if (typeof v === "string" && /^[=+\-@\t\r]/.test(t)) t = "'" + t; return /[",\n]/.test(t) ? `"${t.replaceAll('"', '""')}"` : t; };
  d.getElementById("csv").addEventListener("click", () => {
    const text = [head, ...rows].map(r => r.map(safe).join(",")).join("\n") + "\n";
    const a = d.createElement("a"); a.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    a.download = name + ".csv"; a.click(); setTimeout(() => URL.revokeObjectURL(a.href), 1000);
  });
})();
