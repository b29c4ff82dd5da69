//! JSON schemas as client libraries write them, compared with recordings of PyPI's `jsonschema`.

use serde_json::Value;

use super::*;

/// Written by `tests/tools/record_schemas.py`.
const RECORDED: &str = include_str!("schemas.json");

/// A grammar accepts exactly the documents that are valid under its schema, except for omitted alternatives.
#[test]
fn recorded_schemas_accept_valid_documents() {
    let recorded: Vec<Value> = serde_json::from_str(RECORDED).unwrap();
    assert!(recorded.len() > 40);
    for case in &recorded {
        let name = case["name"].as_str().unwrap();
        let compiled = compile(Grammar::JsonSchema(case["schema"].to_string()));
        if let Some(place) = case["refused"].as_str() {
            match compiled {
                Err(GrammarError::Schema { place: at, .. }) => assert_eq!(at, place, "{name}"),
                other => panic!("{name}: {:?}", other.err()),
            }
            continue;
        }
        let constraint = compiled.unwrap_or_else(|e| panic!("{name}: {e}"));
        let is_taken = |document: &Value| takes(&constraint, &document.to_string());
        let mut n_taken = 0;
        for document in case["valid"].as_array().unwrap() {
            let is_in_part = name.contains("cannot be enforced") || name == "pydantic: Decimal";
            assert!(is_in_part || is_taken(document), "{name}: {document}");
            n_taken += usize::from(is_taken(document));
        }
        assert!(n_taken > 0, "{name}");
        for document in case["invalid"].as_array().unwrap() {
            assert!(!is_taken(document), "{name}: {document}");
        }
    }
}

/// A rewritten schema can be embedded in another one together with its definitions.
#[test]
fn rewritten_schema_refers_only_to_definitions() {
    let recorded: Vec<Value> = serde_json::from_str(RECORDED).unwrap();
    for case in recorded.iter().filter(|case| case["refused"].is_null()) {
        let mut schema = enforceable_schema(&case["schema"]).unwrap();
        let defs = schema.as_object_mut().and_then(|fields| fields.remove("$defs"));
        let mut outer = serde_json::json!({"type": "object", "properties": {"name": {"const": "f"}, "inner": schema}, "required": ["name", "inner"]});
        if let Some(defs) = defs {
            outer["$defs"] = defs;
        }
        let constraint = compile(Grammar::JsonSchema(outer.to_string())).unwrap();
        let name = &case["name"];
        for (documents, is_valid) in [(&case["valid"], true), (&case["invalid"], false)] {
            for document in documents.as_array().unwrap() {
                let whole = format!("{{\"name\": \"f\", \"inner\": {document}}}");
                let alone = compile(Grammar::JsonSchema(case["schema"].to_string())).unwrap();
                assert_eq!(
                    takes(&constraint, &whole),
                    takes(&alone, &document.to_string()),
                    "{name}: {document}"
                );
                assert!(is_valid || !takes(&constraint, &whole), "{name}: {document}");
            }
        }
    }
}

#[test]
fn many_references_and_alternatives_are_bounded() {
    let chain: Vec<String> = (0..5000)
        .map(|i| format!("\"a{i}\": {{\"items\": {{\"$ref\": \"#/$defs/a{}\"}}}}", (i + 1) % 5000))
        .collect();
    let _ = enforceable_schema(
        &serde_json::from_str(&format!(
            "{{\"$ref\": \"#/$defs/a0\", \"$defs\": {{{}}}}}",
            chain.join(",")
        ))
        .unwrap(),
    );
    let inner = (0..6).fold("{\"type\": \"integer\"}".to_owned(), |inner, _| {
        format!("{{\"anyOf\": [{}]}}", vec![inner; 6].join(","))
    });
    let text = format!("{{\"oneOf\": [{inner}, {inner}]}}");
    assert!(enforceable_schema(&serde_json::from_str(&text).unwrap()).is_err());
}

/// The grammar compiler reports errors without their location.
#[test]
fn compiler_errors_are_located_in_schema() {
    let node = json!({"type": "object", "properties": {"x": {"type": "string", "minLength": "y"}}, "required": ["x"]});
    for (schema, place) in [
        (json!({"type": "string", "minLength": "y"}), "#"),
        (
            json!({"type": "object", "properties": {"a": {"type": "boolean"}, "b": node}, "required": ["a", "b"]}),
            "#/properties/b/properties/x",
        ),
        (
            json!({"type": "array", "items": node, "minItems": 1}),
            "#/items/properties/x",
        ),
        (
            json!({"type": "array", "items": {"allOf": [{"type": "string"}, {"type": "integer"}]}, "minItems": 1}),
            "#/items",
        ),
        (
            json!({"$defs": {"N": node}, "$ref": "#/$defs/N"}),
            "#/$defs/N/properties/x",
        ),
        (json!({"anyOf": [{"type": "null"}, node]}), "#/anyOf/1/properties/x"),
    ] {
        match compile(Grammar::JsonSchema(schema.to_string())).map(drop) {
            Err(GrammarError::Schema { place: found, message }) => {
                assert_eq!(found, place, "{schema}: {message}");
                assert!(!message.is_empty());
            }
            other => panic!("{schema}: {other:?}"),
        }
    }
}
