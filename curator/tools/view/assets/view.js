// The page of `curate view`. Names and captions are untrusted: they become text, never HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const state = { changes: new Map(), cards: [], n: 0, chosen: -1, hasGap: false, rules: [], axes: new Map(), found: null, turn: 0, nMarks: 0, uri: "OUT", proofs: {} };
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 320, HEIGHT = 84;

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key in node && key !== "list") node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

function shape(name, attributes = {}, title = null) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (title !== null) node.append(Object.assign(document.createElementNS(SVG, "title"), { textContent: title }));
  return node;
}

const shellWord = (text) => /^[\w@%+=:,.\/-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;

async function request(path, options = {}) {
  // Every failure becomes a sentence that says what to do; the next success on its path hides it.
  try {
    const answer = await fetch(path, options).catch(() => null);
    if (answer === null) throw new Error(`The server does not answer: \`curate view\` ended, or the connection to it broke. Run \`curate view ${shellWord(state.uri)}\` and open the address that it prints.`);
    if (!answer.ok) {
      const { error } = await answer.json().catch(() => ({}));
      throw new Error(error ?? `The server refused with status ${answer.status}; the terminal of \`curate view\` says why.`);
    }
    if ($("error").dataset.path === path) $("error").hidden = true;
    return answer;
  } catch (error) { fail(error.message, path); throw error; }
}

async function ask(path, body = null) {
  const sent = body instanceof Blob || typeof body === "string" ? body : JSON.stringify(body);
  return (await request(path, body === null ? {} : { method: "POST", body: sent })).json();
}

function fail(message, path = "") {
  const box = $("error"), text = message[0].toUpperCase() + message.slice(1);
  box.dataset.path = path;
  box.replaceChildren(text, " ", element("button", { type: "button", onclick: () => { box.hidden = true; } }, "close"));
  box.hidden = false;
  placeError();
}

// A modal dialog covers the rest of the page.
const placeError = () => ($("detail").open ? $("detail") : document.body).append($("error"));

const quiet = (promise) => promise.catch(() => {});
const count = (n) => n.toLocaleString("en-US");
const seconds = (s) => `${Number(s).toFixed(2)} s`;
const number = (value) => Number(Number(value).toPrecision(4)).toString();
const clock = (s) => { const t = Math.max(0, Math.round(s)); return `${Math.floor(t / 60)}:${String(t % 60).padStart(2, "0")}`; };
const changes = () => [...state.changes].map(([key, value]) => `${key}=${value}`);

// ---- the funnel and the histograms

const shownCharts = new Set();
const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) shownCharts.add(target.dataset.score); else shownCharts.delete(target.dataset.score);
  }
  follow();
});

let asking = false, isStale = false;
async function follow() {
  // One request at a time: while a bound is dragged, the newest position counts.
  if (asking) { isStale = true; return; }
  asking = true;
  try {
    do {
      isStale = false;
      const began = performance.now();
      const funnel = await ask("api/funnel", { changes: changes(), scores: [...shownCharts] });
      drawFunnel(funnel);
      document.body.dataset.funnelMs = String(Math.round(performance.now() - began));
      for (const chart of funnel.charts) drawChart(chart, funnel.rules);
    } while (isStale);
  } catch { /* said by fail() */ } finally { asking = false; }
}

function drawFunnel({ rows, kept_s: [now, then] }) {
  drawRows($("funnel"), rows);
  $("hours").textContent = `kept ${(now / 3600).toFixed(3)} h, with the changes ${(then / 3600).toFixed(3)} h`;
}

function drawRows(table, rows) {
  table.tBodies[0].replaceChildren(element("tr", { className: "heads" }, ...["", "now", "then", ""].map((words) => element("th", { className: "n" }, words))), ...rows.map(({ reason, now: before, then: after }) => {
    const difference = after - before;
    const css = difference === 0 ? "n" : (difference > 0) === (reason === null) ? "n more" : "n less";
    const choose = () => { filterBy(reason === null ? { side: "kept" } : { reason }); };
    return element("tr", { className: reason === null ? "kept" : "", onclick: choose, tabIndex: 0 },
      element("td", {}, reason ?? "kept", ...(state.proofs[reason] ? [element("small", { className: "proof" }, state.proofs[reason])] : [])), element("td", { className: "n" }, count(before)),
      element("td", { className: "n" }, count(after)),
      element("td", { className: css }, difference ? (difference > 0 ? "+" : "") + count(difference) : ""));
  }));
}

function addChart({ name: score, unit, meaning, is_bounded }) {
  state.axes.set(score, null);
  const input = (side) => element("input", { type: "number", step: "any", ariaLabel: `${side} of ${score}`,
    onchange: ({ target }) => {
      if (target.validity.badInput) { fail(`${side} of ${score} is no number; the bound stays`); target.value = ""; follow(); return; }
      setBound(score, side, target.value === "" ? null : Number(target.value));
      commit();
    } });
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  const box = element("div", { className: "chart", title: meaning }, element("b", {}, score), " ", element("small", {}, unit), " ", svg, element("small", { className: "values" }), element("br"),
    element("label", {}, "min ", input("min")), " ", element("label", {}, "max ", input("max")));
  box.dataset.score = score;
  (is_bounded ? $("charts") : $("others")).append(box);
  watcher.observe(box);
}

function ruleOf(score) {
  // A rule that rejects; else the one of the score's name, which may be one that flags or a new one.
  return state.rules.find((rule) => rule.score === score && rule.severity === "reject") ?? state.rules.find(({ rule }) => rule === score) ?? { rule: score, score };
}

const placeOf = ([low, high, isLog], value) => WIDTH * Math.min(1, Math.max(0, isLog
  ? Math.log(Math.max(value, low) / low) / Math.log(high / low) : (value - low) / (high - low)));
const valueAt = ([low, high, isLog], x) => isLog ? low * (high / low) ** (x / WIDTH) : low + (high - low) * x / WIDTH;

function drawChart({ score, axis, bins }, rules) {
  const box = [...document.querySelectorAll(".chart")].find((node) => node.dataset.score === score);
  const svg = box.querySelector("svg");
  state.axes.set(score, axis);
  const bound = rules.find(({ rule }) => rule === ruleOf(score).rule) ?? {};
  for (const [side, input] of [["min", box.querySelectorAll("input")[0]], ["max", box.querySelectorAll("input")[1]]]) {
    if (document.activeElement !== input) input.value = bound[side] ?? null;
  }
  const values = box.querySelector(".values");
  box.classList.toggle("same", axis === null);
  if (axis === null) { values.textContent = `the same for all clips`; svg.replaceChildren(); return; }
  values.textContent = `${number(axis[0])} to ${number(axis[1])}${axis[2] ? ", logarithmic" : ""}`;
  const top = Math.max(1, ...bins.map(([kept, rejected]) => kept + rejected));
  const parts = [];
  const step = WIDTH / bins.length, scale = (HEIGHT - 14) / top, floor = HEIGHT - 12;
  bins.forEach(([kept, rejected], at) => {
    const title = `${number(valueAt(axis, at * step))} to ${number(valueAt(axis, (at + 1) * step))}: ${count(kept)} kept, ${count(rejected)} rejected`;
    for (const [n, base, css] of [[kept, 0, "kept-bar"], [rejected, kept, "rejected-bar"]]) {
      if (n) parts.push(shape("rect", { class: css, x: at * step, width: step - 0.6, y: floor - (base + n) * scale, height: Math.max(1, n * scale) }, title));
    }
  });
  for (const side of ["min", "max"]) {
    const isIdle = bound[side] == null;
    const x = isIdle ? (side === "min" ? 0 : WIDTH) : placeOf(axis, bound[side]);
    if (!isIdle) parts.push(shape("rect", { class: "outside", x: side === "min" ? 0 : x, y: 0, width: side === "min" ? x : WIDTH - x, height: floor }));
    parts.push(shape("line", { class: isIdle ? "bound idle" : "bound", x1: x, x2: x, y1: 0, y2: floor }));
    const grip = shape("rect", { class: isIdle ? "grip idle" : "grip", x: Math.min(WIDTH - 9, Math.max(0, x - 4.5)), y: floor, width: 9, height: 12, "data-side": side }, `${side} of ${score}`);
    grip.addEventListener("pointerdown", (event) => drag(event, svg, score, side));
    parts.push(grip);
  }
  if (!svg.dataset.dragged) svg.replaceChildren(...parts);
  else svg.replaceChildren(...parts.filter((part) => !part.dataset.side), ...svg.querySelectorAll("[data-side]"));
}

function drag(event, svg, score, side) {
  event.preventDefault();
  svg.dataset.dragged = side;
  const grip = event.currentTarget, box = svg.getBoundingClientRect();
  const move = (moved) => {
    const x = Math.min(WIDTH, Math.max(0, (moved.clientX - box.left) / box.width * WIDTH));
    grip.setAttribute("x", Math.min(WIDTH - 9, Math.max(0, x - 4.5)));
    const isOff = side === "min" ? x <= 0 : x >= WIDTH;
    setBound(score, side, isOff ? null : Number(valueAt(state.axes.get(score), x).toPrecision(4)));
    follow();
  };
  const stop = () => {
    for (const [name, listener] of listeners) window.removeEventListener(name, listener);
    delete svg.dataset.dragged;
    commit();
  };
  // On the window: redrawing takes elements out, and would end a capture of the pointer.
  const listeners = [["pointermove", move], ["pointerup", stop], ["pointercancel", stop]];
  for (const [name, listener] of listeners) window.addEventListener(name, listener);
}

async function exactly() {
  // An answer to an earlier question would be stale.
  const asked = [changes().join(), state.nMarks].join();
  $("exact").disabled = true;
  const exact = await ask("api/exact", { changes: changes() }).finally(() => { $("exact").disabled = false; });
  if (asked !== [changes().join(), state.nMarks].join()) return;
  drawRows($("exact-lines").querySelector("table"), exact.rows);
  $("exact-lines").querySelector("p").textContent = `${count(exact.n_lost)} kept → rejected, ${count(exact.n_gained)} rejected → kept`;
  $("exact-lines").hidden = false;
}

function setBound(score, side, value) {
  const rule = ruleOf(score), share = side === "min" ? "drop_lowest" : "drop_highest";
  state.changes.set(`filters.${rule.rule}.${side}`, value === null ? "null" : String(value));
  // A bound by a share of the clips would count too, where it is stricter.
  if (rule[share] != null) state.changes.set(`filters.${rule.rule}.${share}`, "null");
}

function commit() {
  $("exact-lines").hidden = true;
  $("changes").querySelector("ul").replaceChildren(...changes().map((change) => element("li", {}, element("code", {}, change), " ",
    element("button", { type: "button", ariaLabel: `undo ${change}`, onclick: () => { state.changes.delete(change.split("=")[0]); commit(); } }, "×"))));
  showCommand();
  follow();
  quiet(load(0));
}

function showCommand() {
  // Marks need no option: the next run honours them.
  $("changes").hidden = state.changes.size === 0 && state.marked.size === 0;
  const quoted = changes().map((change) => ` --set ${shellWord(change)}`).join("");
  $("command").textContent = `curate run SOURCE... ${shellWord(state.uri)}${quoted}`;
}

// ---- the clips

function query() {
  const form = new FormData($("filters")), asked = { changes: changes() };
  for (const [name, value] of form) if (value !== "") asked[name] = name === "cluster" ? Number(value) : name === "descending" ? true : value;
  if (state.source) asked.source = state.source;
  return asked;
}

function filterBy(values) {
  $("filters").reset();
  state.source = values.source ?? null;
  for (const [name, value] of Object.entries(values)) {
    if (name === "source") continue;
    const list = $("filters").elements[name];
    // A bound that was moved, or a mark, may have given a reason that the run did not have.
    if (list.options && ![...list.options].some((option) => option.value === value)) list.append(element("option", { value }, value));
    list.value = value;
  }
  quiet(load(0));
}

async function load(start) {
  const turn = ++state.turn;
  const asked = query();
  const page = await ask("api/clips", { ...asked, start });
  if (turn !== state.turn) return;
  Object.assign(state, { found: null, listed: asked });
  show(page, start);
}

function show(page, start) {
  if (start === 0) { state.cards = []; state.chosen = -1; $("grid").replaceChildren(); $("grid").parentElement.scrollTop = 0; }
  state.cards.push(...page.clips);
  $("grid").append(...page.clips.map(card));
  showCount(page.n);
}

function showCount(n) {
  state.n = n;
  const words = state.found === null ? `${count(n)} clip${n === 1 ? "" : "s"}` : `${count(n)} clips like ${state.found}`;
  const back = element("button", { type: "button", onclick: () => { state.source = null; quiet(load(0)); } }, "all clips");
  $("status").replaceChildren(words, ...(state.source || state.found ? [" ", back] : []));
  $("next").hidden = state.found !== null || state.cards.length >= n;
}

const outcome = (clip) => clip.then === null ? "kept" : clip.then;

function card(clip) {
  const still = element("img", { alt: "", loading: "lazy", src: `picture/${clip.clip_id}/middle.jpg`, onerror: (event) => event.target.remove() });
  const picture = element("div", { className: "picture" }, still, element("b", {}, seconds(clip.end_s - clip.start_s)));
  const node = element("div", { className: "clip", tabIndex: -1, onclick: () => { choose([...$("grid").children].indexOf(node)); quiet(open(clip.clip_id)); } },
    element("span", { className: "badge" }), picture, element("div", { className: "words" },
      element("p", { className: "outcome" }), element("p", { className: "caption" }),
      element("p", { className: "origin", title: clip.source_uri }, element("bdi", {}, clip.source_uri.replace(/\/+$/, "").split("/").pop()), ` ${clock(clip.start_s)}`)));
  preview(picture, clip);
  tell(node, clip);
  return node;
}

function preview(picture, clip) {
  // While the pointer rests on it: the clip itself, or the stored pictures of one that was not written.
  let timer = 0;
  picture.addEventListener("pointerenter", () => {
    if (clip.can_play) {
      timer = setTimeout(() => {
        const video = element("video", { muted: true, loop: true, playsInline: true, src: `clip/${clip.clip_id}.mp4` });
        picture.append(video);
        quiet(video.play());
      }, 150);
      return;
    }
    let at = 0;
    const img = picture.querySelector("img");
    if (!img) return;
    const images = [];
    const fetchNext = () => { const next = new Image(); next.onload = () => { images.push(next.src); fetchNext(); }; next.src = `picture/${clip.clip_id}/${images.length}.jpg`; };
    fetchNext();
    timer = setInterval(() => { if (images.length) img.src = images[++at % images.length]; }, 450);
  });
  picture.addEventListener("pointerleave", () => { clearTimeout(timer); clearInterval(timer); for (const video of picture.querySelectorAll("video")) { video.removeAttribute("src"); video.load(); video.remove(); } });
}

function tell(node, clip) {
  // What a mark can change, on a card or in the dialog.
  const mark = clip.mark ?? {}, badge = node.querySelector(".badge"), caption = node.querySelector(".caption"), text = node.querySelector(".outcome");
  badge.className = `badge ${mark.verdict ?? ""}`;
  badge.textContent = [mark.verdict, mark.label, mark.note ? "note" : null, mark.caption ? "caption" : null].filter(Boolean).join(" · ");
  text.className = `outcome is-${clip.then === null ? "kept" : "rejected"}`;
  text.textContent = outcome(clip) + (clip.similarity === undefined ? "" : ` · ${clip.similarity.toFixed(3)}${clip.words.length ? ` (${clip.words.join(" ")})` : ""}`);
  if (caption) caption.textContent = caption.title = mark.caption ?? clip.caption ?? "no caption";
}

function choose(at) {
  if (at < 0 || at >= state.cards.length) return;
  $("grid").children[state.chosen]?.classList.remove("chosen");
  Object.assign(state, { chosen: at, hasGap: false });
  const node = $("grid").children[at];
  node.classList.add("chosen");
  node.scrollIntoView({ block: "nearest" });
  if (at > state.cards.length - 12 && !$("next").hidden) $("next").click();
}

// ---- marks

const NOTHING = { verdict: null, label: null, note: null, caption: null };
let marking = Promise.resolve();
function mark(clip, changes) {
  // One after the other: a slow store must not change their order. Only what changes is sent.
  if (!clip) return Promise.resolve();
  const done = marking.then(() => store(clip, changes));
  marking = quiet(done);
  return done;
}

async function store(clip, changes) {
  // The clip may be on the page, in the dialog, or both.
  const answer = await ask(`api/mark/${clip.clip_id}`, { ...changes, query: state.listed });
  const at = state.cards.findIndex(({ clip_id }) => clip_id === clip.clip_id);
  const isOpen = $("detail").open && state.opened.clip_id === clip.clip_id;
  for (const shown of [clip, state.cards[at], isOpen ? state.opened : null]) if (shown) Object.assign(shown, { mark: answer.mark, then: answer.then });
  if (at >= 0) tell($("grid").children[at], state.cards[at]);
  if (isOpen) quiet(refresh(clip.clip_id));
  if (state.found === null) {
    if (at >= 0 && !answer.is_listed) takeOut(at);
    showCount(answer.n);
  }
  state.marked.add(clip.clip_id);
  state.nMarks++;
  // They count duplicates and selection with the marks as they were.
  $("exact-lines").hidden = true;
  showCommand();
  follow();
  $("n-marks").textContent = `· ${count(state.marked.size)} marked since it was opened`;
}

function takeOut(at) {
  // The mark took the clip out of the list; the next clip takes its place.
  state.cards.splice(at, 1);
  $("grid").children[at].remove();
  if (at > state.chosen) return;
  const wasChosen = at === state.chosen;
  state.chosen -= wasChosen ? 0 : 1;
  if (!wasChosen) return;
  choose(Math.min(at, state.cards.length - 1));
  state.hasGap = at < state.cards.length;
}

// ---- one clip

function video(clip) {
  const path = `clip/${clip.clip_id}.mp4`;
  const unplayed = () => quiet(request(path, { headers: { Range: "bytes=0-0" } }).then(() => fail("this browser cannot play the clip's codec", path)));
  if (clip.is_picture) return element("img", { className: "still", alt: "", src: clip.is_written ? path : `picture/${clip.clip_id}/middle.jpg` });
  if (clip.can_play) return element("video", { controls: true, muted: true, loop: true, preload: "auto", src: path, onerror: unplayed });
  const still = element("img", { className: "still", alt: "", src: `picture/${clip.clip_id}/middle.jpg` });
  return element("div", {}, still, strip(clip, still), element("button", { type: "button", onclick: (event) => quiet(fromSource(clip, still, event.target)) }, "play it from its source"));
}

async function fromSource(clip, still, button) {
  button.disabled = true;
  const answer = await request(`source/${clip.clip_id}.mp4`).finally(() => { button.disabled = false; });
  const played = element("video", { controls: true, muted: true, loop: true, src: URL.createObjectURL(await answer.blob()) });
  still.replaceWith(played);
  button.remove();
  await played.play();
}

function strip(clip, still) {
  const row = element("div", { className: "strip" });
  const add = (at) => {
    const picture = element("img", { alt: "", src: `picture/${clip.clip_id}/${at}.jpg`, onerror: () => picture.remove(),
      onload: () => { if (at < 40) add(at + 1); }, onpointerenter: () => { still.src = picture.src; } });
    row.append(picture);
  };
  add(0);
  return row;
}

async function open(clipId, focus = null) {
  const clip = await ask(`api/clip/${clipId}`, { changes: changes() });
  state.opened = clip;
  const dialog = $("detail");
  const text = (name, label) => {
    const value = clip.mark?.[name] ?? (name === "caption" ? clip.caption ?? "" : "");
    const field = element(name === "label" ? "input" : "textarea", { value, name, onkeydown: (event) => { if (event.key !== "Escape") event.stopPropagation(); } });
    field.dataset.before = value;
    return element("label", {}, label, field);
  };
  const form = element("form", { onsubmit: async (event) => {
    event.preventDefault();
    const changed = {};
    for (const name of ["label", "note", "caption"]) {
      const field = form.elements[name], value = field.value.trim();
      if (value !== field.dataset.before.trim()) changed[name] = value || null;
    }
    if (Object.keys(changed).length) await mark(clip, changed);
    dialog.close();
  } }, text("label", "label"), text("note", "note"), text("caption", "caption"), element("p", {}, element("button", {}, "save")));
  form.className = "mark";
  const own = video(clip);
  const first = element("div", {}, own, element("p", { className: "outcome" }),
    element("p", { className: "origin" }, element("bdi", {}, clip.source_uri), ` ${seconds(clip.start_s)} to ${seconds(clip.end_s)}`));
  const second = clip.original === null ? form : pair(clip, own);
  document.body.append($("error"));
  $("error").hidden = true;
  dialog.replaceChildren(
    element("form", { method: "dialog" },
      element("button", { type: "button", title: "←", onclick: () => step(-1) }, "previous"), element("button", { type: "button", title: "→", onclick: () => step(1) }, "next"),
      ...["keep", "drop"].map((value) => element("button", { type: "button", className: value, onclick: () => quiet(mark(clip, { verdict: value })) }, value)),
      element("button", { type: "button", onclick: () => quiet(mark(clip, NOTHING)) }, "clear the mark"),
      element("b", {}, clip.clip_id), element("span", { className: "badge" }), element("button", { ariaLabel: "close" }, "close"),
      element("button", { type: "button", onclick: () => { dialog.close(); quiet(similar(clipId)); } }, "similar clips"),
      element("button", { type: "button", onclick: () => { dialog.close(); filterBy({ source: clip.source_id }); } }, "clips of this source")),
    element("div", { className: "two" }, first, second), course(clip),
    ...(clip.original === null ? [] : [form]),
    element("pre", { className: "explained" }, clip.explanation),
    element("ul", { className: "scores" }, ...Object.entries({ ...clip.scores, ...clip.declared }).map(([name, value]) => element("li", {}, `${name} `, element("b", {}, typeof value === "number" ? number(value) : value)))));
  tell(dialog, clip);
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  dialog.focus();
  if (focus) write(focus); else if (clip.can_play) quiet(own.play());
}

function write(name) {
  const field = $("detail").querySelector(`.mark [name=${name}]`);
  field.focus();
  field.select();
}

function step(by) {
  // From the clip that is open, or from its place if a mark took it out of the list.
  const here = state.cards.findIndex(({ clip_id }) => clip_id === state.opened.clip_id);
  const at = here >= 0 ? here + by : state.chosen + (by > 0 && state.hasGap ? 0 : by);
  if (!state.cards[at]) return;
  choose(at);
  quiet(open(state.cards[at].clip_id));
}

async function refresh(clipId) {
  const clip = await ask(`api/clip/${clipId}`, { changes: changes() });
  if (state.opened.clip_id !== clipId) return;
  tell($("detail"), clip);
  $("detail").querySelector(".explained").textContent = clip.explanation;
  $("detail").querySelector(".course").parentElement.replaceWith(course(clip));
  for (const field of $("detail").querySelectorAll(".mark [name]")) {
    const value = clip.mark?.[field.name] ?? (field.name === "caption" ? clip.caption ?? "" : "");
    if (field.value === field.dataset.before) field.value = value;
    field.dataset.before = value;
  }
}

function pair(clip, own) {
  const other = video(clip.original);
  const shift = clip.offset_s ?? 0;
  const together = () => {
    if (clip.can_play) { own.currentTime = Math.max(0, -shift); quiet(own.play()); }
    if (clip.original.can_play) { other.currentTime = Math.max(0, shift); quiet(other.play()); }
  };
  return element("div", {}, other,
    element("p", {}, `${outcome(clip.original)}: `, element("bdi", {}, clip.original.source_uri), ` ${seconds(clip.original.start_s)} on`),
    element("p", {}, clip.overlap_s === null ? "near duplicate" : `shows ${seconds(clip.overlap_s)} of it, from its second ${Math.max(0, shift).toFixed(2)} on`, " ",
      element("button", { type: "button", onclick: together }, "play aligned"), " ",
      element("button", { type: "button", onclick: () => quiet(open(clip.original.clip_id)) }, "open")));
}

function course(clip) {
  // The source from its first to its last shot or clip: shots above, clips below.
  const { shots, clips } = clip.source;
  const end = Math.max(...[...shots, ...clips].map((span) => span.end_s), 0.001);
  const svg = shape("svg", { class: "course", viewBox: "0 0 1000 54", preserveAspectRatio: "none" });
  const x = (s) => 1000 * s / end;
  for (const span of shots) svg.append(shape("rect", { class: "shot", x: x(span.start_s), width: Math.max(1, x(span.end_s - span.start_s)), y: 2, height: 16 }, `shot ${seconds(span.start_s)} to ${seconds(span.end_s)}`));
  for (const span of clips) {
    const css = `${span.then === null ? "kept" : "rejected"}${span.clip_id === clip.clip_id ? " own" : ""}`;
    const part = shape("rect", { class: css, x: x(span.start_s), width: Math.max(1.5, x(span.end_s - span.start_s)), y: 24, height: 24 }, `${span.then ?? "kept"}: ${seconds(span.start_s)} to ${seconds(span.end_s)}`);
    part.addEventListener("click", () => quiet(open(span.clip_id)));
    svg.append(part);
  }
  return element("div", {}, element("small", {}, `source: ${shots.length} shots, ${clips.length} clips, ${seconds(end)}`), svg);
}

// ---- search

async function search(by, body, words) {
  const where = $("filters").elements.where.value;
  $("status").textContent = "searching …";
  const path = `api/search/${by}?k=60${where ? `&where=${encodeURIComponent(where)}` : ""}`;
  const page = await ask(path, body).catch((error) => { showCount(state.n); throw error; });
  state.turn++;
  const isUnread = by === "text" && $("words").title.includes("captions") && !page.clips.some((clip) => clip.words.length);
  state.found = words + (isUnread ? ", of which no clip has a word: the nearest by meaning" : "");
  show(page, 0);
}
const similar = (clipId) => search("clip", clipId, `clip ${clipId}`);

// ---- start

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  const isOpen = $("detail").open, at = state.chosen, clip = state.cards[at];
  const columns = () => getComputedStyle($("grid")).gridTemplateColumns.split(" ").length;
  const marked = isOpen ? state.opened : clip;
  const verdict = (value) => { quiet(mark(marked, { verdict: value })); if (!isOpen) choose(at + 1); };
  const field = (name) => { if (isOpen) write(name); else if (clip) quiet(open(clip.clip_id, name)); };
  const actions = {
    ArrowRight: () => isOpen ? step(1) : choose(at + 1), ArrowLeft: () => isOpen ? step(-1) : choose(at - 1),
    k: () => verdict("keep"), d: () => verdict("drop"), u: () => quiet(mark(marked, NOTHING)),
    l: () => field("label"), n: () => field("note"), c: () => field("caption"),
    Enter: () => { if (isOpen) $("detail").close(); else if (clip) quiet(open(clip.clip_id)); },
    s: () => { $("detail").close(); if (marked) quiet(similar(marked.clip_id)); },
    // In an opened clip, these scroll.
    ...(isOpen ? {} : { ArrowDown: () => choose(at < 0 ? 0 : at + columns()), ArrowUp: () => choose(at - columns()) }),
  };
  const isButton = event.target.closest("button, tr, summary") && event.key === "Enter";
  if (!(event.key in actions) || isButton) return;
  event.preventDefault();
  actions[event.key]();
}

function showSnapshot({ uri, snapshot, newest }) {
  $("uri").textContent = `${uri}, snapshot ${snapshot}${newest !== snapshot ? ` (the newest is ${newest}: start curate view again)` : ""}`;
}

async function start() {
  const overview = await ask("api/overview");
  Object.assign(state, { uri: overview.uri, rules: overview.rules, proofs: overview.proofs, marked: new Set() });
  showSnapshot(overview);
  $("fit").textContent = overview.fit.join("; ");
  // A run may have ended meanwhile.
  window.addEventListener("focus", () => quiet(ask("api/overview").then(showSnapshot)));
  const fill = (name, options) => $("filters").elements[name].append(...options.map(([value, words]) => element("option", { value }, words)));
  fill("reason", overview.reasons.map(([name, n]) => [name, `${name} (${count(n)})`]));
  fill("tag", overview.tags.map(([name, n]) => [name, `${name} (${count(n)})`]));
  fill("bucket", overview.buckets.map(([name, n]) => [name, `${name} (${count(n)})`]));
  fill("cluster", overview.clusters.map(({ cluster, n, words }) => [cluster, `${cluster} (${count(n)}) ${words}`]));
  fill("sort", overview.scores.map(({ name }) => [name, name]));
  overview.scores.forEach(addChart);
  $("scores").open = !matchMedia("(max-width:640px)").matches;
  $("others").querySelector("summary").textContent = `${overview.scores.filter((score) => !score.is_bounded).length} scores without a bound`;
  $("words").title = overview.can_search.text;
  $("filters").addEventListener("change", () => quiet(load(0)));
  $("filters").addEventListener("submit", (event) => { event.preventDefault(); quiet(load(0)); });
  // In turn with marks, which may take clips out of the list.
  $("next").addEventListener("click", () => { $("next").hidden = true; marking = quiet(marking.then(() => load(state.cards.length))); });
  new IntersectionObserver((entries) => { if (entries[0].isIntersecting && !$("next").hidden) $("next").click(); }).observe($("next"));
  $("search").addEventListener("submit", (event) => {
    event.preventDefault();
    const file = $("file").files[0], words = $("words").value.trim();
    if (file) quiet(search("picture", file, `picture ${file.name}`)); else if (/^[0-9a-f]{4,}$/.test(words)) filterBy({ where: `starts_with(clip_id, '${words}')` }); else if (words) quiet(search("text", words, `“${words}”`)); else quiet(load(0));
    $("file").value = "";
  });
  $("file").addEventListener("change", () => $("search").requestSubmit());
  $("reset").addEventListener("click", () => { state.changes.clear(); commit(); });
  $("copy").addEventListener("click", () => quiet(navigator.clipboard.writeText($("command").textContent)));
  $("exact").addEventListener("click", () => quiet(exactly()));
  $("detail").addEventListener("close", () => { for (const media of $("detail").querySelectorAll("video")) media.pause(); placeError(); });
  document.addEventListener("keydown", keys);
  follow();
  await load(0);
}

quiet(start());
