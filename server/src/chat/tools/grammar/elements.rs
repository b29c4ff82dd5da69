//! Grammars of arguments that are written as elements.

use std::fmt::Write;

use serde_json::Value as Json;

use super::super::definition::Function;
use super::super::elements::ITEM;
use super::{MAX_DEPTH, Rules, properties, properties_of, texts};
use crate::api::ApiResult;

impl Rules<'_> {
    /// Returns a rule body for the arguments of a function; `mark` precedes each tag.
    pub(super) fn elements(&mut self, function: &Function, mark: &str) -> ApiResult<String> {
        // Reports parameters that list no properties.
        properties(function)?;
        let schema = function.schema();
        // Each function has its own definitions.
        self.defs.clear();
        Ok(self.members(&schema, &schema, mark, 0))
    }

    fn members(&mut self, root: &Json, schema: &Json, mark: &str, depth: usize) -> String {
        let mut items = Vec::new();
        for property in properties_of(schema).unwrap_or_default() {
            let element = self.element(root, &property.schema, (mark, &property.name), depth);
            items.push((self.rule("", &element), property.is_required));
        }
        self.listed(&items, "")
    }

    /// Returns a rule body for an element with this mark and name. `root` has the definitions.
    fn element(&mut self, root: &Json, schema: &Json, (mark, name): (&str, &str), depth: usize) -> String {
        let open = self.literal(&format!("{mark}<{name}>"));
        format!("{open} {}", self.content(root, schema, (mark, name), depth))
    }

    /// Returns a rule body for the content of an element and the closing tag. The tag is one literal, so that a text
    /// starting like the tag of an item must be an item.
    fn content(&mut self, root: &Json, schema: &Json, (mark, name): (&str, &str), depth: usize) -> String {
        let end = self.literal(&format!("{mark}</{name}>"));
        if let Some(target) = schema["$ref"].as_str() {
            return self.definition(root, target, (mark, name));
        }
        if let Some(texts) = texts(schema) {
            let texts: Vec<String> = texts.iter().map(|text| self.literal(text)).collect();
            return format!("({}) {end}", texts.join(" | "));
        }
        if let Some(options) = schema["anyOf"].as_array()
            && depth < MAX_DEPTH
        {
            let option = |option| self.content(root, option, (mark, name), depth + 1);
            let options: Vec<String> = options.iter().map(option).collect();
            return format!("({})", options.join(" | "));
        }
        match schema["type"].as_str() {
            Some("array") if depth < MAX_DEPTH => {
                let item = self.element(root, &schema["items"], (mark, ITEM), depth + 1);
                format!("({item})* {end}")
            }
            Some("object") if depth < MAX_DEPTH => format!("{} {end}", self.members(root, schema, mark, depth + 1)),
            Some("integer" | "number" | "boolean" | "null") => format!("{} {end}", self.json(schema.clone())),
            _ => self.text_until(&end),
        }
    }

    /// Returns the rule of a definition, which may refer to itself, as the content of an element.
    fn definition(&mut self, root: &Json, target: &str, (mark, name): (&str, &str)) -> String {
        let key = format!("{target} {name}");
        if let Some(known) = self.defs.get(&key) {
            return known.clone();
        }
        let rule = format!("r{}", self.n);
        self.n += 1;
        self.defs.insert(key, rule.clone());
        let schema = root.pointer(target.trim_start_matches('#'));
        let body = self.content(root, &schema.cloned().unwrap_or_default(), (mark, name), 0);
        let _ = writeln!(self.text, "{rule}: {body}");
        rule
    }
}
