//! `/v1/responses`: items, order of events, and stored responses.

use serde_json::{Value as Json, json};

use crate::common::{Options, Server};

const PATH: &str = "/v1/responses";
/// Template with reasoning tags and tagged tool calls.
const TEMPLATE: &str = "{% if tools %}<s>{% for t in tools %}{{ t | tojson }}\n{% endfor %}</s>{% endif %}\
    {% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}\n<tool_call>\n\
    {\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}</s>\n{% endfor %}\
    {% if add_generation_prompt %}<assistant>{% endif %}";

fn server() -> Server {
    Server::with(Options {
        template: Some(TEMPLATE),
        n_ctx: 4096,
        ..Options::default()
    })
}

/// Returns the data of the events of a stream.
fn events(server: &Server, body: &Json) -> Vec<Json> {
    let response = server.post(PATH, body);
    assert_eq!(response.status, 200, "{}", response.body);
    let events = response.body.split("\n\n").filter(|event| !event.is_empty());
    let read = |event: &str| {
        let (name, data) = event.split_once("\ndata: ").expect("an event name and data");
        let data: Json = serde_json::from_str(data).expect("JSON");
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        data
    };
    events.map(read).collect()
}

#[test]
fn string_input_yields_message() {
    let server = server();
    let body = json!({"input": "hello", "max_output_tokens": 12, "ignore_eos": true, "temperature": 0, "metadata": {"a": "b"}});
    let response = server.ask(PATH, &body);
    assert_eq!(
        (&response["object"], &response["status"]),
        (&json!("response"), &json!("incomplete")),
        "{response}"
    );
    assert_eq!(response["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(
        (&response["usage"]["output_tokens"], &response["metadata"]["a"]),
        (&json!(12), &json!("b"))
    );
    let text = response["output"][0]["content"][0]["text"].as_str().unwrap();
    let chat = server.ask("/v1/chat/completions", &json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "ignore_eos": true, "temperature": 0}));
    assert_eq!(chat["choices"][0]["message"]["content"], text);
    // Input as a list of items, with instructions.
    let listed = json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}], "max_output_tokens": 12, "ignore_eos": true, "temperature": 0});
    assert_eq!(server.ask(PATH, &listed)["output"][0]["content"][0]["text"], text);
    let mut instructed = listed;
    instructed["instructions"] = "Be brief.".into();
    let n_input = |response: &Json| response["usage"]["input_tokens"].as_u64().unwrap();
    assert!(n_input(&server.ask(PATH, &instructed)) > n_input(&response));
}

#[test]
fn stream_events_follow_api_order() {
    let server = server();
    let mut body = json!({"input": "hello", "max_output_tokens": 12, "ignore_eos": true, "temperature": 0});
    let whole = server.ask(PATH, &body);
    body["stream"] = true.into();
    let events = events(&server, &body);
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    assert_eq!(
        kinds,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.incomplete"
        ]
    );
    assert!(
        events
            .iter()
            .enumerate()
            .all(|(i, event)| event["sequence_number"] == i)
    );
    let text: String = events
        .iter()
        .filter(|e| e["type"] == "response.output_text.delta")
        .map(|e| e["delta"].as_str().unwrap())
        .collect();
    assert_eq!(whole["output"][0]["content"][0]["text"], text);
    let last = &events.last().unwrap()["response"];
    assert_eq!(
        (&last["usage"], &last["output"][0]["content"]),
        (&whole_usage(&whole, last), &whole["output"][0]["content"])
    );
    let id = events[2]["item"]["id"].as_str().unwrap();
    assert!(
        events[3..events.len() - 2]
            .iter()
            .all(|event| event["item_id"] == id && event["output_index"] == 0)
    );
}

/// Returns the usage of `whole` with the cached token count of `other`.
fn whole_usage(whole: &Json, other: &Json) -> Json {
    let mut usage = whole["usage"].clone();
    usage["input_tokens_details"] = other["usage"]["input_tokens_details"].clone();
    usage
}

#[test]
fn function_calls_and_results_round_trip() {
    let server = server();
    let tools = json!([
        {"type": "function", "name": "weather", "description": "-", "strict": true, "parameters": {"type": "object", "properties": {"warm": {"type": "boolean"}}, "required": ["warm"], "additionalProperties": false}},
        {"type": "web_search"},
    ]);
    let body = json!({"input": "hello", "tools": tools, "tool_choice": "required", "temperature": 1, "seed": 3, "max_output_tokens": 200});
    let raw = server.post(PATH, &body);
    assert!(
        raw.header("warning").is_some_and(|text| text.contains("websearch")),
        "{raw:?}"
    );
    let response = raw.json();
    let call = &response["output"][0];
    assert_eq!(
        (&call["type"], &call["name"], &response["status"]),
        (&json!("function_call"), &json!("weather"), &json!("completed"))
    );
    let arguments: Json = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["warm"].is_boolean());
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let events = events(&server, &streamed);
    let deltas = events
        .iter()
        .filter(|e| e["type"] == "response.function_call_arguments.delta");
    let deltas: String = deltas.map(|e| e["delta"].as_str().unwrap()).collect();
    assert_eq!(call["arguments"], deltas);
    assert!(
        events
            .iter()
            .any(|e| e["type"] == "response.function_call_arguments.done" && e["arguments"] == call["arguments"])
    );
    // A result after the call item and a result after the stored response yield the same prompt.
    let result = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "yes"});
    let after =
        json!({"previous_response_id": response["id"], "input": [result], "tools": tools, "max_output_tokens": 1});
    let listed =
        json!({"input": [{"role": "user", "content": "hello"}, call, result], "tools": tools, "max_output_tokens": 1});
    let (after, listed) = (server.ask(PATH, &after), server.ask(PATH, &listed));
    assert_eq!(after["usage"]["input_tokens"], listed["usage"]["input_tokens"]);
    assert_eq!(after["output"][0]["content"], listed["output"][0]["content"]);
}

/// Coding agents send functions in namespaces and custom tools.
#[test]
fn namespaced_and_custom_tools_are_called() {
    let server = server();
    let schema = json!({"type": "object", "properties": {"warm": {"type": "boolean"}}, "required": ["warm"], "additionalProperties": false});
    let weather = json!({"type": "function", "name": "weather", "strict": false, "parameters": schema});
    let tools = json!([
        {"type": "namespace", "name": "mcp__sky", "description": "-", "tools": [weather]},
        {"type": "custom", "name": "patch", "description": "-", "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"a\""}},
    ]);
    let ask = |choice: Json| {
        let body = json!({"input": "hello", "tools": tools, "tool_choice": choice, "temperature": 1, "seed": 3, "max_output_tokens": 400, "stream": true});
        let events = events(&server, &body);
        (events.last().unwrap()["response"]["output"][0].clone(), events)
    };
    let (call, _) = ask(json!({"type": "function", "name": "weather", "namespace": "mcp__sky"}));
    let identity = (&call["type"], &call["namespace"], &call["name"]);
    assert_eq!(
        identity,
        (&json!("function_call"), &json!("mcp__sky"), &json!("weather"))
    );
    let arguments: Json = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["warm"].is_boolean());
    let (text, events) = ask(json!({"type": "custom", "name": "patch"}));
    assert_eq!(
        (&text["type"], &text["name"]),
        (&json!("custom_tool_call"), &json!("patch")),
        "{text}"
    );
    assert!(text["input"].is_string() && text.get("arguments").is_none(), "{text}");
    let about: Vec<&str> = events
        .iter()
        .filter_map(|e| e["type"].as_str())
        .filter(|kind| kind.contains("_call_"))
        .collect();
    assert_eq!(
        about,
        [
            "response.custom_tool_call_input.delta",
            "response.custom_tool_call_input.done"
        ]
    );
    // Both calls are accepted as input together with their results.
    let output = |kind: &str, call: &Json| json!({"type": kind, "call_id": call["call_id"], "output": "yes"});
    let input = json!([
        {"role": "user", "content": "hello"},
        call, output("function_call_output", &call), text, output("custom_tool_call_output", &text),
    ]);
    server.ask(PATH, &json!({"input": input, "tools": tools, "max_output_tokens": 1}));
    for wrong in [
        json!({"type": "namespace", "tools": [weather]}),
        json!({"type": "namespace", "name": "a"}),
        json!({"type": "namespace", "name": "a", "tools": [{"type": "web_search"}]}),
        json!({"type": "custom"}),
    ] {
        server.refused(PATH, &json!({"input": "a", "tools": [wrong]}), 400);
    }
    let nameless = json!({"type": "custom_tool_call", "call_id": "c", "input": "a"});
    assert_eq!(
        server.refused(PATH, &json!({"input": [nameless]}), 400)["param"],
        "input[0]"
    );
}

#[test]
fn responses_are_stored_unless_disabled() {
    let server = server();
    let body = |store: bool| json!({"input": "hello", "max_output_tokens": 2, "store": store});
    let response = server.ask(PATH, &body(true));
    let path = format!("{PATH}/{}", response["id"].as_str().unwrap());
    assert_eq!(server.get(&path).json(), response);
    assert_eq!(server.request("DELETE", &path, &[], b"").json()["deleted"], true);
    assert_eq!(
        (
            server.get(&path).status,
            server.request("DELETE", &path, &[], b"").status
        ),
        (404, 404)
    );
    let error = server.refused(
        PATH,
        &json!({"input": "a", "previous_response_id": response["id"]}),
        400,
    );
    assert_eq!(error["code"], "previous_response_not_found");
    let unkept = server.ask(PATH, &body(false));
    assert_eq!(
        server.get(&format!("{PATH}/{}", unkept["id"].as_str().unwrap())).status,
        404
    );
}

#[test]
fn format_is_enforced_and_errors_are_named() {
    let server = server();
    let schema = json!({"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"], "additionalProperties": false});
    let format = json!({"format": {"type": "json_schema", "name": "x", "strict": true, "schema": schema}});
    let response = server.ask(
        PATH,
        &json!({"input": "hello", "text": format, "temperature": 1, "max_output_tokens": 50}),
    );
    let text = response["output"][0]["content"][0]["text"].as_str().unwrap();
    assert!(serde_json::from_str::<Json>(text).unwrap()["yes"].is_boolean());
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": 7}), "input"),
        (json!({"input": []}), "messages"),
        (json!({"input": [{"type": "computer_call"}]}), "input[0]"),
        (json!({"input": [{"type": "function_call", "name": "f"}]}), "input[0]"),
        (json!({"input": [{"type": "message"}]}), "input[0]"),
        (json!({"input": "a", "background": true}), "background"),
        (json!({"input": "a", "text": {"format": {"type": "xml"}}}), "text"),
        (json!({"input": "a", "tools": [{}]}), "tools"),
        (
            json!({"input": "a", "tool_choice": {"type": "allowed_tools"}}),
            "tool_choice",
        ),
        (json!({"input": "a", "reasoning": {"effort": 3}}), "reasoning"),
        (json!({"input": "a", "conversation": "c"}), "conversation"),
        (json!({"input": "a", "max_output_tokens": 0}), "max_output_tokens"),
    ] {
        let error = server.refused(PATH, &body, 400);
        assert_eq!(error["param"], param, "{error}");
    }
}

/// Reasoning is attached to the message or call that follows.
#[test]
fn reasoning_items_reach_template() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content }}{{ m.content }}{% for c in m.tool_calls or [] %}\
        {{ c.function.name }}{% endfor %}</s>{% endfor %}<assistant>";
    let server = Server::with(Options {
        template: Some(template),
        ..Options::default()
    });
    let prompt = |input: Json| {
        let counted = server.ask("/v1/responses/input_tokens", &json!({ "input": input }));
        counted["input_tokens"].as_u64().unwrap()
    };
    let request = json!({"role": "user", "content": "hello"});
    let thought = json!({"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "what to say"}]});
    let message = json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]});
    let call = json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"});
    let n = prompt(json!([request, thought, message])) - prompt(json!([request, message]));
    assert!(n > 3, "{n}");
    assert_eq!(
        prompt(json!([request, thought, call])) - prompt(json!([request, call])),
        n
    );
    // A call and the text after it form one message.
    assert_eq!(
        prompt(json!([request, call, message])),
        prompt(json!([request, message, call]))
    );
    // Reasoning without a following item is dropped.
    assert_eq!(prompt(json!([request, thought])), prompt(json!([request])));
    let encrypted = json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"});
    assert_eq!(
        prompt(json!([request, encrypted, message])),
        prompt(json!([request, message]))
    );
}

/// The second turn of a client that refers to the items of the first response instead of repeating them.
#[test]
fn item_references_stand_for_stored_items() {
    let server = Server::with(Options {
        template: Some(TEMPLATE),
        n_ctx: 4096,
        keys: vec!["one".to_owned(), "two".to_owned()],
        ..Options::default()
    });
    let ask = |key: &str, input: Json| {
        let body = json!({"input": input, "max_output_tokens": 8, "temperature": 0});
        let response = server.request("POST", PATH, &[("x-api-key", key)], body.to_string().as_bytes());
        (response.status, response.json())
    };
    let (_, first) = ask("one", json!("hello"));
    let item = &first["output"][0];
    let turn = |item: Json| json!([{"role": "user", "content": "hello"}, item, {"role": "user", "content": "again"}]);
    let by_reference = turn(json!({"type": "item_reference", "id": item["id"]}));
    let (_, second) = ask("one", by_reference.clone());
    let (_, repeated) = ask("one", turn(item.clone()));
    assert_eq!(second["output"][0]["content"], repeated["output"][0]["content"]);
    assert_eq!(second["usage"]["input_tokens"], repeated["usage"]["input_tokens"]);
    // References to input items of an earlier request, and to nothing.
    let path = format!("{PATH}/{}/input_items", second["id"].as_str().unwrap());
    let listed = server.request("GET", &path, &[("x-api-key", "one")], b"").json();
    let of_user = listed["data"][2]["id"].clone();
    assert_eq!(ask("one", json!([{"type": "item_reference", "id": of_user}])).0, 200);
    let (status, error) = ask("one", turn(json!({"type": "item_reference", "id": "msg_none"})));
    assert_eq!((status, &error["error"]["param"]), (400, &json!("input[1]")), "{error}");
    assert_eq!(ask("two", by_reference).0, 400, "items of another key are not found");
}

#[test]
fn input_items_are_listed_in_pages() {
    let server = server();
    let input = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"type": "message", "role": "user", "content": "c", "id": "mine"}]);
    let response = server.ask(PATH, &json!({"input": input, "max_output_tokens": 4}));
    let list = |query: &str| {
        let path = format!("{PATH}/{}/input_items{query}", response["id"].as_str().unwrap());
        let response = server.get(&path);
        (response.status, response.json())
    };
    let contents = |list: &Json| -> String {
        let items = list["data"].as_array().unwrap().iter();
        items.map(|item| item["content"].as_str().unwrap().to_owned()).collect()
    };
    let (_, all) = list("");
    assert_eq!((contents(&all).as_str(), &all["has_more"]), ("cba", &json!(false)));
    assert_eq!((&all["first_id"], &all["object"]), (&json!("mine"), &json!("list")));
    assert!(
        all["data"]
            .as_array()
            .unwrap()
            .iter()
            .all(|item| item["id"].is_string() && item["type"] == "message")
    );
    let (_, page) = list("?order=asc&limit=1");
    assert_eq!((contents(&page).as_str(), &page["has_more"]), ("a", &json!(true)));
    let after = format!("?order=asc&after={}", page["last_id"].as_str().unwrap());
    assert_eq!(contents(&list(&after).1), "bc");
    for wrong in ["?limit=0", "?limit=101", "?order=up", "?after=none"] {
        assert_eq!(list(wrong).0, 400, "{wrong}");
    }
    assert_eq!(server.get("/v1/responses/none/input_items").status, 404);
    let text = server.ask(PATH, &json!({"input": "hello", "max_output_tokens": 4}));
    let path = format!("{PATH}/{}/input_items", text["id"].as_str().unwrap());
    assert_eq!(
        server.get(&path).json()["data"][0]["content"][0],
        json!({"type": "input_text", "text": "hello"})
    );
}

/// A stored response can repeat its events, starting at any event, whether or not it was streamed.
#[test]
fn stored_events_are_repeated() {
    let server = server();
    for stream in [true, false] {
        let body =
            json!({"input": "hello", "max_output_tokens": 6, "ignore_eos": true, "temperature": 0, "stream": stream});
        let first = server.post(PATH, &body);
        let id = if stream {
            let events = first.body.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
            serde_json::from_str::<Json>(events).unwrap()["response"]["id"].clone()
        } else {
            first.json()["id"].clone()
        };
        let again = |query: &str| server.get(&format!("{PATH}/{}?stream=true{query}", id.as_str().unwrap()));
        let all = again("");
        assert_eq!(all.header("content-type"), Some("text/event-stream"));
        if stream {
            assert_eq!(all.body, first.body);
        }
        let rest = again("&starting_after=2").body;
        assert!(
            all.body.ends_with(&rest)
                && rest.contains("\"sequence_number\":3")
                && !rest.contains("\"sequence_number\":2,")
        );
        let last = all.body.trim_end().rsplit("data: ").next().unwrap();
        let last: Json = serde_json::from_str(last).unwrap();
        assert_eq!(
            (&last["type"], &last["response"]["id"]),
            (&json!("response.incomplete"), &id)
        );
        assert_eq!(again("&starting_after=x").status, 400);
    }
}

#[test]
fn logprobs_are_returned_and_verbosity_is_reported() {
    let server = server();
    let body = |stream: bool| {
        json!({"input": "hello", "max_output_tokens": 6, "ignore_eos": true, "temperature": 0, "stream": stream,
        "include": ["message.output_text.logprobs", "reasoning.encrypted_content"], "top_logprobs": 2})
    };
    let part = server.ask(PATH, &body(false))["output"][0]["content"][0].clone();
    let logprobs = part["logprobs"].as_array().unwrap();
    let text: String = logprobs.iter().map(|one| one["token"].as_str().unwrap()).collect();
    assert_eq!((logprobs.len(), part["text"].as_str()), (6, Some(text.as_str())));
    assert!(
        logprobs
            .iter()
            .all(|one| one["logprob"].as_f64() <= Some(0.0) && one["top_logprobs"][1]["bytes"].is_array())
    );
    let events = events(&server, &body(true));
    let deltas = events
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta");
    let of_deltas: Vec<Json> = deltas
        .flat_map(|event| event["logprobs"].as_array().unwrap().clone())
        .collect();
    // The second request finds its prompt in the cache, which rounds differently.
    let tokens = |list: &[Json]| -> Vec<Json> { list.iter().map(|one| one["token"].clone()).collect() };
    assert_eq!(tokens(&of_deltas), tokens(logprobs));
    let done = events
        .iter()
        .find(|event| event["type"] == "response.output_text.done")
        .unwrap();
    assert_eq!(done["logprobs"], json!(of_deltas));
    let plain = |more: Json| {
        let mut body = json!({"input": "hello", "max_output_tokens": 2});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let response = server.post(PATH, &body);
        (response.header("warning").map(str::to_owned), response.json())
    };
    let (warning, response) = plain(json!({"text": {"verbosity": "low"}}));
    assert!(warning.unwrap().contains("text.verbosity"));
    assert_eq!(response["output"][0]["content"][0]["logprobs"], json!([]));
    assert!(plain(json!({"top_logprobs": 2})).0.unwrap().contains("top_logprobs"));
    assert_eq!(plain(json!({"text": {"verbosity": "medium"}})).0, None);
}
