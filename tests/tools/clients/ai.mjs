// Tests the features of the npm package `ai` against a server. `ai.py` runs this script.
import assert from "node:assert";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embed, embedMany, generateObject, generateText, streamObject, streamText, tool } from "ai";
import { z } from "zod";

const server = createOpenAICompatible({
  name: "local",
  baseURL: `${process.argv.at(-1)}/v1`,
  apiKey: "none",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const prompt = "What is the capital of France? Answer in one sentence.";
const asked = { model: server("any"), temperature: 0, maxOutputTokens: 60, maxRetries: 0 };

async function checkText() {
  const answer = await generateText({ ...asked, prompt });
  assert(answer.text.includes("Paris") && answer.usage.outputTokens > 0, answer.text);
  const streamed = streamText({ ...asked, prompt });
  let text = "";
  for await (const piece of streamed.textStream) text += piece;
  assert.strictEqual(text, answer.text);
  assert.strictEqual((await streamed.usage).outputTokens, answer.usage.outputTokens);
  assert.strictEqual(await streamed.finishReason, answer.finishReason);
  const messages = [{ role: "user", content: prompt }, { role: "assistant", content: text }, { role: "user", content: "Say it again." }];
  const after = await generateText({ ...asked, messages });
  assert(after.usage.inputTokens > answer.usage.inputTokens);
  console.log("ai, whole, streams, turns:", text);
}

async function checkStructure() {
  const schema = z.object({ name: z.string(), isCapital: z.boolean() });
  const wanted = { ...asked, schema, prompt: "Describe the city of Paris as JSON." };
  const { object } = await generateObject(wanted);
  schema.parse(object);
  const streamed = streamObject(wanted);
  for await (const part of streamed.partialObjectStream) assert.strictEqual(typeof part, "object");
  assert.deepStrictEqual(await streamed.object, object);
  console.log("ai, structure:", object);
}

async function checkFunctions() {
  const cities = [];
  const weather = tool({
    description: "Tells the weather of a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `It rains in ${cities[cities.push(city) - 1]}.`,
  });
  const wanted = { ...asked, tools: { weather }, toolChoice: "required", prompt: "How is the weather in Paris?" };
  const called = await generateText(wanted);
  assert.strictEqual(called.toolCalls[0].toolName, "weather");
  const streamed = streamText(wanted);
  await streamed.consumeStream();
  assert.deepStrictEqual((await streamed.toolCalls).map((call) => call.input), called.toolCalls.map((call) => call.input));
  assert.strictEqual(await streamed.finishReason, called.finishReason);
  const messages = [{ role: "user", content: wanted.prompt }, ...called.response.messages];
  const after = await generateText({ ...asked, tools: { weather }, messages });
  assert(after.usage.outputTokens > 0);
  console.log("ai, functions:", cities, after.text);
}

async function checkOthers() {
  const model = server.embeddingModel("any");
  const { embeddings } = await embedMany({ model, values: ["a cat", "a kitten"] });
  const { embedding } = await embed({ model, value: "a cat" });
  assert(embeddings.length === 2 && embedding.every((x, i) => Math.abs(x - embeddings[0][i]) < 1e-3));
  const text = await generateText({ ...asked, model: server.completionModel("any"), maxOutputTokens: 6, prompt: "One, two, three, four," });
  // The package adds speaker names to the prompt.
  assert(text.text.length > 0 && text.usage.outputTokens <= 6);
  await assert.rejects(generateText({ ...asked, prompt, maxOutputTokens: 60, providerOptions: { local: { no_such_field: 1 } } }), /no_such_field/);
  console.log("ai, vectors, texts, errors:", embedding.length, text.text);
}

await checkText();
await checkStructure();
await checkFunctions();
await checkOthers();
