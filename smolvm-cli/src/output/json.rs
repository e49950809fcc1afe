//! Objects for programs: one a line, each with its version.

use serde_json::{Map, Value, json};

use super::harmless::steers;

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

/// The object of a warning.
pub(super) fn warning(message: &str) -> Object {
    object(json!({"warning": {"message": message}}))
}

/// One line, `v` first. What could steer a terminal is escaped.
pub(super) fn render(object: Object) -> String {
    let mut line = format!("{{\"v\":{VERSION}");
    for (key, value) in object {
        line.push_str(&format!(",{}:{value}", Value::String(key)));
    }
    line.push('}');
    escape_steering(line)
}

/// JSON allows U+007F and up as they are, and only inside strings, where escapes mean the same.
fn escape_steering(line: String) -> String {
    if !line.chars().any(steers) {
        return line;
    }
    let escape = |c: char| match c {
        c if steers(c) => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    line.chars().map(escape).collect()
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

    #[test]
    fn nothing_in_an_object_steers_a_terminal() {
        let text = "\u{7f}\u{9b}2J\u{202e}\u{2066}ü";
        let line = render(object(json!({"name": text})));
        assert!(!line.chars().any(steers), "{line}");
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["name"], text);
    }
}
