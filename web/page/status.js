// The page: asks for the snapshot each second and draws it.

const refresh = 1000, patience = 4000, usualWatermark = 0.8;
const view = { chosen: null, answer: null, lostSince: null, spoken: "", scale: 1.25, ticks: 0 };

const nameOf = (r) => `${r.model_name}\u0000${r.engine}`;

const charts = [
  chart(byId("chart-load"), {
    title: "Load ratio", format: (v) => v.toFixed(2), bottomTop: 1.25, banded: true,
    lines: [
      { label: "largest", style: "ink", read: (c) => c.load_ratio },
      { label: "sequence slots", style: "a", thin: true, read: (c) => c.load_ratios.sequence_slots },
      { label: "token slots", style: "b", thin: true, read: (c) => c.load_ratios.token_slots },
      { label: "curve", style: "c", thin: true, read: (c) => c.load_ratios.curve },
    ],
  }),
  chart(byId("chart-requests"), {
    title: "Requests", format: (v) => Number.isInteger(v) ? count(v) : quantity(v), bottomTop: 4,
    lines: [{ label: "running", style: "a", read: (c) => c.requests_running }, { label: "waiting", style: "b", read: (c) => c.requests_waiting }],
  }),
  chart(byId("chart-tokens"), {
    title: "Tokens per second", format: count, bottomTop: 10,
    lines: [{ label: "generated", style: "a", read: (c) => c.generation_tokens_per_second }, { label: "prompt, computed", style: "b", read: (c) => c.computed_prompt_tokens_per_second }],
  }),
  chart(byId("chart-latency"), {
    title: "Latency", format: duration,
    lines: [{ label: "first token", style: "a", read: (c) => c.time_to_first_token_seconds }, { label: "between tokens", style: "b", read: (c) => c.inter_token_latency_seconds }],
  }),
];

function drawLink(kind, text) {
  byId("link").dataset.link = kind;
  say(byId("link-text"), text);
  document.body.classList.toggle("lost", kind === "lost");
}

// drawRanks shows a button for each replica when there are several.
function drawRanks(replicas, chosen) {
  const nav = byId("ranks");
  nav.hidden = replicas.length < 2;
  if (nav.hidden) return;
  const models = new Set(replicas.map((r) => r.model_name)).size;
  fit(byId("rank-buttons"), replicas.length, () => {
    const button = element("button");
    button.type = "button";
    button.append(element("span", "name"), element("span", "zone"), element("span", "value"));
    return button;
  }).forEach((button, i) => {
    const r = replicas[i];
    button.dataset.zone = r.zone;
    button.setAttribute("aria-pressed", String(r === chosen));
    button.onclick = () => { view.chosen = nameOf(r); view.ticks = 0; draw(); };
    say(button.children[0], models > 1 ? `${r.model_name} · rank ${r.engine}` : `rank ${r.engine}`);
    say(button.children[1], `${zones[r.zone].glyph} `);
    const h = r.headroom_ratio;
    say(button.children[2], !known(h) ? r.state : h < 0 ? `${percent(-h)} over full` : `${percent(h)} left`);
  });
  const total = (read) => replicas.every((r) => known(read(r))) ? replicas.reduce((sum, r) => sum + read(r), 0) : null;
  const parts = [[quantity(total((r) => r.left.requests_per_second)), "more requests/s"], [count(total((r) => r.left.sequence_slots)), "sequence slots"], [count(total((r) => r.left.token_slots)), "token slots"]];
  say(byId("together"), `All ranks together can take${replicas.every((r) => r.curve.valid) ? "" : " at most"} ${parts.map(([v, unit]) => `${v} ${unit}`).join(" · ")}`);
}

function drawHero(answer, r) {
  const [first, ...rest] = r.summary.split(" · ");
  const figure = first.match(/^(.* %) (.*)$/);
  const serving = r.state === "ok" || r.state === "idle";
  const waiting = r.state === "loading" || r.state === "asleep";
  byId("hero").dataset.zone = serving ? r.zone : waiting ? "waiting" : "trouble";
  say(byId("figure"), figure ? figure[1] : dash);
  say(byId("figure-word"), figure ? figure[2] : "headroom not known");
  say(byId("glyph"), serving ? zones[r.zone].glyph : waiting ? "◌" : "✕");
  say(byId("zone"), serving ? zones[r.zone].words : `engine ${answer.engine.state === r.state ? "" : "rank "}${r.state}`);
  const own = answer.engine.state === r.state ? answer.engine : { summary: `This rank is ${r.state}.`, advice: r.reasons[0] };
  const lead = serving && figure ? rest.join(" · ") : own.summary;
  say(byId("lead"), lead.charAt(0).toUpperCase() + lead.slice(1));
  say(byId("lead-note"), serving ? [r.model_name && `${r.model_name}, rank ${r.engine}.`, figure ? own.summary : "Why its headroom is not known stands at the end of this page."].filter(Boolean).join(" ") : [own.advice, answer.engine.error && `Last error: ${answer.engine.error}`].filter(Boolean).join("\n"));
  drawLeft(r.left);
  const curve = byId("curve");
  curve.hidden = !known(r.headroom_ratio) || !r.curve.notice;
  say(byId("curve-title"), r.curve.notice ? r.curve.notice.title : "");
  say(byId("curve-text"), r.curve.notice ? r.curve.notice.text : "");
  document.title = `${figure ? `${figure[1]} ${figure[2]}` : r.state} · ${r.model_name || "Headroom"}`;
}

function drawLeft(left) {
  // What is left below nothing is too much, and said so.
  const more = (v, what) => known(v) && v < 0 ? [`${what} too many`, quantity(-v)] : [`more ${what}`, quantity(v)];
  const free = (v, what) => known(v) && v < 0 ? [`${what} too many`, count(-v)] : [`free ${what}`, count(v)];
  facts(byId("left"), [
    more(left.requests_per_second, "requests/s"), more(left.prompt_tokens_per_second, "prompt tokens/s"),
    more(left.generation_tokens_per_second, "generated tokens/s"), free(left.sequence_slots, "sequence slots"), free(left.token_slots, "token slots"),
  ]);
}

// watermarkOf is where a replica's stable zone ends: at its curve's own watermark while that counts.
const watermarkOf = (r, usual) => r.curve?.valid && known(r.curve.watermark_ratio) ? r.curve.watermark_ratio : usual;

function drawBars(r, usual) {
  const watermark = watermarkOf(r, usual);
  const names = Object.keys(constraintNames);
  const value = (name) => r.load_ratio[name];
  // The binding constraint first, then as listed, what is not known last.
  const place = (name) => name === r.binding_constraint ? -1 : names.indexOf(name) + (known(value(name)) ? 0 : names.length);
  const order = [...names].sort((a, b) => place(a) - place(b));
  const most = Math.max(0, ...names.map(value).filter(known));
  // The scale grows at once, and shrinks only when much less would do.
  const wanted = Math.max(1.25, niceTop(most * 1.02));
  if (wanted > view.scale || wanted < view.scale * 0.6) view.scale = wanted;
  const at = (v) => `${Math.min(100, (v / view.scale) * 100)}%`;
  fit(byId("bars"), names.length, () => {
    const row = element("li"), track = element("div", "track");
    track.append(element("div", "fill"), element("div", "mark"), element("div", "mark full"));
    track.setAttribute("aria-hidden", "true");
    const label = element("span", "label"), tag = element("span", "tag", "binds");
    label.append(element("span"), tag);
    row.append(label, track, element("span", "value"));
    return row;
  }).forEach((row, i) => {
    const v = value(order[i]), binding = order[i] === r.binding_constraint;
    // The other constraints have the usual watermark.
    const stable = order[i] === "curve" ? watermark : usual;
    row.dataset.zone = zoneOf(v, stable);
    row.className = binding ? "binding" : known(v) ? "" : "none";
    const [label, track, number] = row.children;
    say(label.children[0], constraintNames[order[i]]);
    label.children[1].hidden = !binding;
    say(number, ratio(v));
    const [fill, low, full] = track.children;
    fill.style.width = known(v) ? at(Math.max(0, v)) : "0";
    low.style.left = at(stable);
    full.style.left = at(1);
    low.hidden = full.hidden = !known(v);
  });
  const ticks = [["start", "0", 0], ["watermark", `watermark ${watermark.toFixed(2)}`, watermark], ["full", "1.0 full", 1]];
  const scale = byId("axis").children[1];
  const [start, low] = fit(scale, ticks.length, () => element("span"));
  [...scale.children].forEach((tick, i) => {
    tick.className = ticks[i][0];
    say(tick, ticks[i][1]);
    tick.style.left = at(ticks[i][2]);
  });
  // On a long scale the watermark is too close to the start for a word; its mark stays.
  low.style.visibility = (watermark / view.scale) * scale.clientWidth < low.offsetWidth + start.offsetWidth ? "hidden" : "visible";
}

function drawFacts(answer, r) {
  const slots = (o) => known(o.used) || known(o.total) ? `${count(o.used)} of ${count(o.total)}` : dash;
  const share = (o) => [known(o.ratio) ? percent(o.ratio) : "", o.source ? `total: ${limitSources[o.source] || o.source}` : ""].filter(Boolean).join(" · ");
  const sequence = r.occupancy.sequence_slots, token = r.occupancy.token_slots, bandwidth = r.bandwidth_saturation;
  facts(byId("slots"), [
    ["sequence slots", slots(sequence), share(sequence)], ["token slots", slots(token), share(token)],
    ["tokens a step", count(r.token_budget.tokens), r.token_budget.source ? limitSources[r.token_budget.source] || r.token_budget.source : ""],
    ["memory bandwidth", bandwidth ? `${percent(bandwidth.ratio)} of achievable` : dash, bandwidth ? bandwidthSources[bandwidth.source] || bandwidth.source : ""],
  ]);
  const computed = r.rates.computed_prompt_tokens_per_second, over = r.rates.span_seconds;
  facts(byId("traffic"), [
    ["running", count(r.requests.running)], ["waiting", count(r.requests.waiting)],
    ["requests offered", rate(r.rates.offered_requests_per_second), `mean of the last ${known(over) && over < 59.5 ? duration(over) : "minute"}`], ["requests served", rate(r.rates.served_requests_per_second)],
    ["prompt tokens", rate(r.rates.prompt_tokens_per_second), computed === 0 || !known(computed) ? "" : computed === r.rates.prompt_tokens_per_second ? "all of them computed" : `${rate(computed)} computed, the rest from cache`],
    ["generated tokens", rate(r.rates.generation_tokens_per_second)], ["preemptions", rate(r.rates.preemptions_per_second)], ["engine steps", rate(r.rates.steps_per_second)],
  ]);
  const l = r.latencies;
  facts(byId("latency"), [
    ["time to first token", duration(l.time_to_first_token_seconds)], ["between tokens", duration(l.inter_token_latency_seconds)],
    ["in the queue", duration(l.queue_time_seconds)], ["in prefill", duration(l.prefill_time_seconds)], ["backlog", duration(r.backlog_seconds), "time to admit what waits"],
  ]);
  const e = answer.engine;
  facts(byId("engine"), [
    ["state", e.state, e.reason ? `reason: ${e.reason}` : ""], ["engine", [e.type, e.version].filter(Boolean).join(" ") || dash],
    ["last good reading", known(e.age_seconds) ? `${duration(e.age_seconds)} ago` : "none yet"], ["poll took", duration(e.poll_duration_seconds), known(e.series) ? `${count(e.series)} samples on the page` : ""],
    ["longest sequence", known(e.max_model_length_tokens) ? `${count(e.max_model_length_tokens)} tokens` : dash],
  ]);
  drawGPUs(answer);
  const missing = e.missing_signals.length ? [`Signals that the engine's page does not carry: ${e.missing_signals.join(", ")}.`] : [];
  const reasons = [...r.reasons, ...missing];
  fit(byId("reasons"), Math.max(1, reasons.length), () => element("li")).forEach((item, i) => say(item, reasons[i] || "Nothing: every reading is there."));
}

function drawGPUs(answer) {
  const place = byId("gpus");
  if (!answer.gpus.length) {
    if (place.firstElementChild?.tagName !== "P") place.replaceChildren(element("p"));
    say(place.firstElementChild, `No GPU readings${answer.gpu_error ? `: ${answer.gpu_error}` : ""}.`);
    return;
  }
  if (place.firstElementChild?.tagName === "P") place.replaceChildren();
  fit(place, answer.gpus.length, () => {
    const block = element("div");
    block.append(element("h3"), element("dl", "facts"));
    return block;
  }).forEach((block, i) => {
    const g = answer.gpus[i];
    say(block.children[0], `${g.index} · ${g.model || g.uuid}`);
    facts(block.children[1], [
      ["memory", `${bytes(g.memory_used_bytes)} of ${bytes(g.memory_size_bytes)}`],
      ["bandwidth, SM active", `${percent(g.memory_bandwidth_ratio)}, ${percent(g.sm_active_ratio)}`],
      ["power", known(g.power_watts) ? `${count(g.power_watts)} of ${count(g.power_limit_watts)} W` : dash],
      ["clock, temperature", `${known(g.sm_clock_hertz) ? `${count(g.sm_clock_hertz / 1e6)} MHz` : dash}, ${known(g.temperature_celsius) ? `${count(g.temperature_celsius)} °C` : dash}`],
      ["health", g.lost ? `lost: ${answer.gpu_error || words(g.lost)}` : g.recovery_action && g.recovery_action !== "none" ? `needs ${words(g.recovery_action)}` : g.throttled_by.length ? `throttled by ${g.throttled_by.map(words).join(", ")}` : "nothing reported"],
    ]);
  });
}

// announce speaks to a screen reader when the state or zone changes, not each second.
function announce(key, text) {
  if (view.spoken === key) return;
  view.spoken = key;
  say(byId("announce"), text);
}

function chosenReplica() {
  const replicas = view.answer.replicas;
  return replicas.find((r) => nameOf(r) === view.chosen) || replicas[0];
}

function draw() {
  const answer = view.answer, r = chosenReplica(), e = answer.engine;
  say(byId("target"), [[e.type, e.version].filter(Boolean).join(" "), e.url].filter(Boolean).join(" · "));
  if (!r) return;
  drawRanks(answer.replicas, r);
  drawHero(answer, r);
  drawBars(r, answer.watermark_ratio);
  // The server draws the curve every other second; its first line must not lag behind the figure above it.
  const summary = byId("curve-section").querySelector(".curve-summary");
  if (summary && r.curve.picture) say(summary, r.curve.picture.summary);
  drawFacts(answer, r);
  announce(`${nameOf(r)} ${r.state} ${r.zone}`, `${r.summary}. Zone ${r.zone}, engine ${r.state}.`);
}

async function ask(path) {
  const response = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(patience) });
  const body = await response.json();
  if (!response.ok) throw Object.assign(new Error(body.error), { answered: true });
  return body;
}

function history() {
  const r = chosenReplica();
  return r && ask(`api/v1/history?seconds=${span}&model_name=${encodeURIComponent(r.model_name)}&engine=${encodeURIComponent(r.engine)}`);
}

// capacityCurve is the part of the page that the server draws: the replica against its curve.
// The picture is as wide as its place, so that its words keep their size.
async function capacityCurve() {
  const r = chosenReplica(), place = byId("curve-section").querySelector(".curve-picture");
  if (!r) return null;
  const width = Math.round(place ? place.clientWidth : Math.min(720, byId("main").clientWidth));
  const response = await fetch(`page/curve?width=${width}&model_name=${encodeURIComponent(r.model_name)}&engine=${encodeURIComponent(r.engine)}`, { cache: "no-store", signal: AbortSignal.timeout(patience) });
  const text = await response.text();
  if (!response.ok) throw Object.assign(new Error(text.trim()), { answered: true });
  return text;
}

function drawCapacityCurve(text) {
  const section = byId("curve-section"), like = section.cloneNode();
  like.hidden = false;
  like.append(...new DOMParser().parseFromString(text, "text/html").body.childNodes);
  morph(section, like);
}

function drawCurves(body) {
  const columns = body.replicas[0] || null, end = Date.parse(body.time);
  const r = chosenReplica(), usual = view.answer.watermark_ratio, watermark = r ? watermarkOf(r, usual) : usual;
  for (const drawChart of charts) drawChart(columns, end, watermark);
}

// tick asks once. Only the asking may fail: what the server does not answer is said, and the last answer stays in sight.
async function tick() {
  let answer, curves, capacity;
  try {
    answer = await ask("api/v1/headroom");
    view.answer = answer;
    if (view.ticks % 2 === 0) [curves, capacity] = await Promise.all([history(), capacityCurve()]);
  } catch (problem) {
    if (problem.answered) {
      drawLink("waiting", problem.message);
    } else {
      view.lostSince ||= new Date();
      drawLink("lost", `no answer since ${clock(view.lostSince)}`);
      document.title = "No answer · Headroom";
      announce("lost", "The exporter does not answer.");
    }
    return;
  }
  view.ticks++;
  view.lostSince = null;
  const age = answer.snapshot_age_seconds;
  drawLink(age > 10 ? "late" : "live", age > 10 ? `readings are ${duration(age)} old` : "exporter live");
  draw();
  if (curves) drawCurves(curves);
  if (capacity) drawCapacityCurve(capacity);
}

// drawNothing draws the instrument with no reading on it, so that nothing moves when the first one comes.
function drawNothing() {
  const slot = {};
  const replica = { load_ratio: {}, occupancy: { sequence_slots: slot, token_slots: slot }, token_budget: {}, requests: {}, rates: {}, latencies: {}, reasons: [] };
  drawLeft({});
  drawBars(replica, usualWatermark);
  drawFacts({ engine: { state: dash, missing_signals: [] }, gpus: [] }, replica);
  say(byId("reasons").firstElementChild, "Everything: there is no reading yet.");
  for (const drawChart of charts) drawChart(null, Date.now(), usualWatermark);
}

async function run() {
  drawNothing();
  for (;;) {
    if (!document.hidden) await tick().catch((problem) => console.error(problem));
    await new Promise((next) => setTimeout(next, refresh));
  }
}
run();
