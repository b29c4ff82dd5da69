//! Parses arguments that a model writes as elements. Each key is a tag, objects contain an element for each key, and
//! lists contain elements named `item`. A control token precedes all tags.

use serde_json::{Map, Value as Json};

use super::literal::ParseStop;
use super::types::{ValueTypes, item_schema, property_schema};

/// Maximum nesting depth.
const MAX_DEPTH: usize = 64;
/// Name of the elements of a list.
pub const ITEM: &str = "item";

/// Content of an element.
enum Node<'a> {
    Text(&'a str),
    Elements(Vec<(&'a str, Node<'a>)>),
}

/// A tag after the control token.
enum Tag<'a> {
    Open(&'a str),
    Close(&'a str),
    /// The text after the control token is not a tag.
    None,
}

/// Parses elements at the start of a text, up to the closing tag of the call. Returns the arguments and the offset of
/// that tag.
pub fn arguments(text: &str, mark: &str, parameters: &Json) -> Result<(Map<String, Json>, usize), ParseStop> {
    let mut reader = Reader { text, at: 0, mark };
    let mut all = Map::new();
    loop {
        let rest = reader.rest().trim_start();
        let at = text.len() - rest.len();
        if !rest.starts_with(mark) {
            return Err(if mark.starts_with(rest) {
                ParseStop::More
            } else {
                ParseStop::Wrong
            });
        }
        reader.at = at + mark.len();
        match reader.tag()? {
            Tag::Open(name) => {
                let node = reader.node(name, 0)?;
                let schema = property_schema(parameters, parameters, name);
                all.insert(name.to_owned(), value_of(node, parameters, schema));
            }
            Tag::Close(_) => return Ok((all, at)),
            Tag::None => return Err(ParseStop::Wrong),
        }
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    mark: &'a str,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Reads a tag after the control token.
    fn tag(&mut self) -> Result<Tag<'a>, ParseStop> {
        let rest = self.rest();
        let Some(inner) = rest.strip_prefix('<') else {
            return if rest.is_empty() {
                Err(ParseStop::More)
            } else {
                Ok(Tag::None)
            };
        };
        let end = inner.find(['<', '>', '\n']);
        let Some(end) = end else { return Err(ParseStop::More) };
        let name = &inner[..end];
        if !inner[end..].starts_with('>') || name.is_empty() {
            return Ok(Tag::None);
        }
        self.at += end + 2;
        Ok(name.strip_prefix('/').map_or(Tag::Open(name), Tag::Close))
    }

    /// Reads the content of an element up to the end of its closing tag.
    fn node(&mut self, name: &str, depth: usize) -> Result<Node<'a>, ParseStop> {
        if depth > MAX_DEPTH {
            return Err(ParseStop::Wrong);
        }
        let (start, mut elements) = (self.at, Vec::new());
        loop {
            let before = self.at;
            let found = self.rest().find(self.mark).ok_or(ParseStop::More)?;
            let at = before + found;
            self.at = at + self.mark.len();
            match self.tag()? {
                Tag::Close(closed) if closed == name && elements.is_empty() => {
                    return Ok(Node::Text(&self.text[start..at]));
                }
                Tag::Close(closed) if closed == name => return Ok(Node::Elements(elements)),
                Tag::Open(inner) if self.text[before..at].trim().is_empty() => {
                    elements.push((inner, self.node(inner, depth + 1)?));
                }
                // The tag belongs to a text.
                _ if elements.is_empty() => {}
                _ => return Err(ParseStop::Wrong),
            }
        }
    }
}

fn value_of(node: Node<'_>, root: &Json, schema: Option<&Json>) -> Json {
    let types = ValueTypes::of_schema(root, schema);
    let elements = match node {
        Node::Text(text) => return types.element(text),
        Node::Elements(elements) => elements,
    };
    let is_list = elements.iter().all(|(name, _)| *name == ITEM);
    if is_list && types.allows_lists() && property_schema_is_absent(root, schema) {
        let schema = schema.and_then(|schema| item_schema(root, schema));
        return elements
            .into_iter()
            .map(|(_, node)| value_of(node, root, schema))
            .collect();
    }
    let member = |(name, node): (&str, Node<'_>)| {
        let schema = schema.and_then(|schema| property_schema(root, schema, name));
        (name.to_owned(), value_of(node, root, schema))
    };
    Json::Object(elements.into_iter().map(member).collect())
}

/// Returns true unless a schema has a property with the name of list elements.
fn property_schema_is_absent(root: &Json, schema: Option<&Json>) -> bool {
    schema.is_none_or(|schema| property_schema(root, schema, ITEM).is_none())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn elements_are_read_by_schema() {
        let schema = json!({"type": "object", "properties": {
            "t": {"type": "string"}, "n": {"type": "integer"}, "l": {"type": "array", "items": {"type": "string"}},
            "o": {"$ref": "#/$defs/o"}, "e": {"type": "array"}},
            "$defs": {"o": {"type": "object", "properties": {"b": {"type": "boolean"}, "o": {"$ref": "#/$defs/o"}}}}});
        let text = "§<t>7 <b> & §</u> \n§</t>\n§<n>7§</n>§<l>§<item>1§</item>§<item>x§</item>§</l>\
                    §<o>§<b>true§</b>§<o>§<b>false§</b>§</o>§</o>§<e>§</e>§<free>§<item>1§</item>§</free>§</invoke> rest";
        let (found, end) = arguments(text, "§", &schema).unwrap();
        let wanted = json!({"t": "7 <b> & §</u> \n", "n": 7, "l": ["1", "x"], "o": {"b": true, "o": {"b": false}},
                            "e": [], "free": [1]});
        assert_eq!(Json::Object(found), wanted);
        assert_eq!(&text[end..], "§</invoke> rest");
        for n in (0..end + "§</invoke>".len()).filter(|n| text.is_char_boundary(*n)) {
            assert_eq!(
                arguments(&text[..n], "§", &schema).err(),
                Some(ParseStop::More),
                "{}",
                &text[..n]
            );
        }
        for wrong in ["x", "§x", "§<>", "§<a>§<b>1§</b>x§</c>"] {
            assert_eq!(arguments(wrong, "§", &schema).err(), Some(ParseStop::Wrong), "{wrong}");
        }
        let deep = "§<a>".repeat(10_000);
        assert_eq!(arguments(&deep, "§", &schema).err(), Some(ParseStop::Wrong));
    }
}
