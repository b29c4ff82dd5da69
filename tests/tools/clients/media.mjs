// Asks a server about an image or audio file with the package `ai`, and prints the answer as JSON; media.py runs it.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText } from "ai";

const [base, kind, mediaType, data, question, maxTokens] = process.argv.slice(-6);
const server = createOpenAICompatible({ name: "local", baseURL: `${base}/v1`, apiKey: "none" });
const file = kind === "image" ? { type: "image", image: data, mediaType } : { type: "file", data, mediaType };
const messages = [{ role: "user", content: [file, { type: "text", text: question }] }];
const { text } = await generateText({ model: server("any"), temperature: 0, maxOutputTokens: Number(maxTokens), maxRetries: 0, messages });
console.log(JSON.stringify(text));
