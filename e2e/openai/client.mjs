// Asks an OpenAI-compatible server for everything a client of it would ask
// for, through the openai package, and prints one JSON object: for each
// request the numbers that must be right and the shape of the answer.
//
// usage: node client.mjs BASE_URL MODEL MAX_MODEL_LEN
import OpenAI from "openai";

const [baseURL, model, maxModelLen] = process.argv.slice(2);
if (!maxModelLen) {
  console.error("usage: node client.mjs BASE_URL MODEL MAX_MODEL_LEN");
  process.exit(2);
}
const client = new OpenAI({ baseURL: `${baseURL}/v1`, apiKey: "none", maxRetries: 0, timeout: 60_000 });

// shape returns the sorted list of "path: type" of a JSON value; the elements
// of an array count as one.
function shape(value, path = "") {
  if (Array.isArray(value)) {
    const inner = value.flatMap((v) => shape(v, `${path}[]`));
    return [...new Set([`${path}: array`, ...inner])].sort();
  }
  if (value !== null && typeof value === "object") {
    return Object.keys(value).sort().flatMap((k) => shape(value[k], path ? `${path}.${k}` : k));
  }
  return [`${path}: ${value === null ? "null" : typeof value}`];
}

const union = (chunks) => [...new Set(chunks.flatMap((c) => shape(c)))].sort();

// collect reads a stream to its end.
async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

const usageOf = (u) => u && { prompt: u.prompt_tokens, completion: u.completion_tokens, total: u.total_tokens };
const finishOf = (chunks) => chunks.map((c) => c.choices[0]?.finish_reason).filter(Boolean);

// failure returns what the client makes of an error answer.
async function failure(ask) {
  try {
    await ask();
    return { class: "none" };
  } catch (e) {
    return { class: e.constructor.name, status: e.status, type: e.type, param: e.param, code: e.code, shape: shape(e.error) };
  }
}

const results = {};

const models = await client.models.list();
results.models = {
  ids: models.data.map((m) => m.id),
  max_model_len: models.data[0].max_model_len,
  shape: shape(models.data[0]),
};

const text = "The quick brown fox"; // 19 bytes
const exact = (n) => ({ max_tokens: n, min_tokens: n, ignore_eos: true });

{
  const r = await client.completions.create({ model, prompt: text, ...exact(12), temperature: 0 });
  results.completion = { usage: usageOf(r.usage), finish: r.choices[0].finish_reason, shape: shape(r) };
}
{
  const chunks = await collect(
    await client.completions.create({ model, prompt: text, ...exact(24), stream: true, stream_options: { include_usage: true } }),
  );
  results.completion_stream = {
    usage: usageOf(chunks.at(-1).usage),
    last_has_choices: chunks.at(-1).choices.length > 0,
    finish: finishOf(chunks),
    one_id: new Set(chunks.map((c) => c.id)).size === 1,
    shape: union(chunks),
  };
}
{
  const prompt = Array.from({ length: 40 }, (_, i) => 10 + i);
  const chunks = await collect(
    await client.completions.create({
      model, prompt, ...exact(16), stream: true, return_token_ids: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
    }),
  );
  const withChoice = chunks.filter((c) => c.choices.length > 0);
  const counts = withChoice.map((c) => c.usage.completion_tokens);
  results.completion_token_ids = {
    usage: usageOf(chunks.at(-1).usage),
    token_ids: withChoice.reduce((n, c) => n + (c.choices[0].token_ids?.length ?? 0), 0),
    prompt_token_ids: withChoice[0].choices[0].prompt_token_ids?.length,
    usage_rises: counts.every((n, i) => i === 0 || n >= counts[i - 1]) && counts.at(-1) === 16,
    shape: union(chunks),
  };
}
{
  const chunks = await collect(await client.completions.create({ model, prompt: text, ...exact(8), stream: true }));
  results.completion_no_usage = {
    has_usage: chunks.some((c) => c.usage != null),
    finish: finishOf(chunks),
    shape: union(chunks),
  };
}

const messages = [{ role: "user", content: "hello" }];
{
  const r = await client.chat.completions.create({ model, messages, ...exact(12) });
  results.chat = {
    usage: usageOf(r.usage), finish: r.choices[0].finish_reason, role: r.choices[0].message.role, shape: shape(r),
  };
}
{
  const chunks = await collect(
    await client.chat.completions.create({ model, messages, ...exact(20), stream: true, stream_options: { include_usage: true } }),
  );
  results.chat_stream = {
    usage: usageOf(chunks.at(-1).usage),
    first_role: chunks[0].choices[0].delta.role,
    first_content: chunks[0].choices[0].delta.content,
    finish: finishOf(chunks),
    shape: union(chunks),
  };
}
{
  // A client that leaves: the third chunk is the last it reads.
  const stream = await client.completions.create({ model, prompt: text, ...exact(500), stream: true });
  let read = 0;
  for await (const _ of stream) {
    if (++read === 3) break;
  }
  results.left_after = read;
}

const tooMany = Number(maxModelLen) + 1;
results.errors = {
  unknown_model: await failure(() => client.completions.create({ model: "no-such-model", prompt: text, max_tokens: 1 })),
  unknown_model_chat: await failure(() => client.chat.completions.create({ model: "no-such-model", messages })),
  unknown_route: await failure(() => client.get("/no-such-route")),
  too_many_tokens: await failure(() => client.completions.create({ model, prompt: text, max_tokens: tooMany })),
  prompt_too_long: await failure(() => client.completions.create({ model, prompt: "x".repeat(tooMany), max_tokens: 1 })),
  negative_max_tokens: await failure(() => client.completions.create({ model, prompt: text, max_tokens: -1 })),
  missing_prompt: await failure(() => client.completions.create({ model, max_tokens: 1 })),
  wrong_type: await failure(() => client.chat.completions.create({ model, messages: "hello" })),
};

console.log(JSON.stringify(results, null, 1));
