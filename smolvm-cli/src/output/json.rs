//! Objects for programs: one a line, each with its version.

use serde_json::{Map, Value, json};

/// Version of all objects.
const VERSION: u32 = 1;

/// An object without its version.
pub(crate) type Object = Map<String, Value>;

/// Turns a `json!({...})` into an object.
pub(crate) fn object(value: Value) -> Object {
    match value {
        Value::Object(object) => object,
        other => Map::from_iter([("value".to_owned(), other)]),
    }
}

/// The object of an error.
pub(super) fn error(code: &str, message: &str, hint: Option<&str>) -> Object {
    object(json!({"error": {"code": code, "message": message, "hint": hint}}))
}

/// One line, `v` first.
pub(super) fn render(object: Object) -> String {
    let mut line = format!("{{\"v\":{VERSION}");
    for (key, value) in object {
        line.push_str(&format!(",{}:{value}", Value::String(key)));
    }
    line.push('}');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_with_its_version_first() {
        let line = render(error("state", "a \"b\"\nc", None));
        assert!(line.starts_with("{\"v\":1,\"error\":"), "{line}");
        assert!(!line.contains('\n'));
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["error"]["message"], "a \"b\"\nc");
        assert_eq!(value["error"]["hint"], Value::Null);
    }
}
