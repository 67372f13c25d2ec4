//! [`RequestFields`]: the fields that a request may have, read from its schema in the OpenAPI document. Finds
//! fields that nobody knows, fields that are known and cannot be honored, and the place of a type error.

pub mod other;

use std::any::TypeId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult};

/// Maximum number of unknown fields that are reported, and of levels that are searched.
const MAX_UNKNOWN: usize = 64;
const MAX_DEPTH: usize = 16;
/// Maximum length of the path of a field in messages and headers.
const MAX_PATH: usize = 100;

/// The body of a request. Its fields are those of its schema and of the lists below.
pub trait RequestBody: DeserializeOwned + ToSchema + 'static {
    /// Fields that the API has and the schema has not.
    const OTHER_FIELDS: &'static [&'static [OtherField]] = &[];
}

/// A field that the server knows without reading it into a request.
#[derive(Clone, Copy, Debug)]
pub struct OtherField {
    /// Name, after the names of the objects around it: `options.num_gpu`.
    path: &'static str,
    support: Support,
}

#[derive(Clone, Copy, Debug)]
enum Support {
    /// Any value is accepted.
    Any,
    /// These values change nothing; others are refused for a reason.
    Only(&'static [Literal], &'static str),
}

/// A JSON value in a constant.
#[derive(Clone, Copy, Debug)]
pub enum Literal {
    /// A boolean.
    Bool(bool),
    /// An integer.
    Integer(i64),
    /// A string.
    Text(&'static str),
    /// A list of one string.
    List(&'static str),
    /// An empty list, object or string.
    Empty,
}

impl OtherField {
    /// A field without influence on the answer, or another name of one in the schema.
    pub const fn any(path: &'static str) -> OtherField {
        OtherField {
            path,
            support: Support::Any,
        }
    }

    /// A field that is accepted with `values`, and refused with others for `reason`. `null` is always
    /// accepted.
    pub const fn only(
        path: &'static str,
        values: &'static [Literal],
        reason: &'static str,
    ) -> OtherField {
        OtherField {
            path,
            support: Support::Only(values, reason),
        }
    }

    /// Refuses a value that cannot be honored.
    fn check(&self, value: &Value) -> ApiResult<()> {
        let Support::Only(values, reason) = self.support else {
            return Ok(());
        };
        if value.is_null() || values.iter().any(|literal| literal.equals(value)) {
            return Ok(());
        }
        let path = self.path;
        let supported: Vec<String> = values.iter().map(Literal::shown).collect();
        let supported = match supported.is_empty() {
            true => "leave it out".to_owned(),
            false => format!("supported values: {}", supported.join(", ")),
        };
        Err(ApiError::not_supported(format!(
            "`{path}` is not supported: {reason}; {supported}"
        )))
    }
}

impl Literal {
    fn equals(&self, value: &Value) -> bool {
        match self {
            Literal::Bool(on) => value.as_bool() == Some(*on),
            Literal::Integer(n) => value.as_f64() == Some(*n as f64),
            Literal::Text(text) => value.as_str() == Some(text),
            Literal::List(text) => {
                let list = value.as_array().map(Vec::as_slice);
                matches!(list, Some([only]) if only.as_str() == Some(text))
            }
            Literal::Empty => match value {
                Value::Array(list) => list.is_empty(),
                Value::Object(map) => map.is_empty(),
                Value::String(text) => text.is_empty(),
                _ => false,
            },
        }
    }

    fn shown(&self) -> String {
        match self {
            Literal::Bool(on) => on.to_string(),
            Literal::Integer(n) => n.to_string(),
            Literal::Text(text) => format!("{text:?}"),
            Literal::List(text) => format!("[{text:?}]"),
            Literal::Empty => "an empty value".to_owned(),
        }
    }
}

/// The fields of a type of request.
pub struct RequestFields {
    /// JSON schema of the request.
    schema: Value,
    /// Schemas that it refers to, by name.
    components: Map<String, Value>,
    others: BTreeMap<&'static str, OtherField>,
}

impl RequestFields {
    /// The fields of `T`, computed once.
    pub fn of<T: RequestBody>() -> Arc<RequestFields> {
        static KNOWN: Mutex<BTreeMap<TypeId, Arc<RequestFields>>> = Mutex::new(BTreeMap::new());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = known.entry(TypeId::of::<T>());
        entry
            .or_insert_with(|| Arc::new(RequestFields::new::<T>()))
            .clone()
    }

    fn new<T: RequestBody>() -> RequestFields {
        let mut components = Vec::new();
        T::schemas(&mut components);
        // A schema always serializes; an empty one allows everything.
        let json = |schema| serde_json::to_value(schema).unwrap_or_default();
        let components = components.into_iter();
        let others = T::OTHER_FIELDS.iter().flat_map(|list| list.iter());
        RequestFields {
            schema: json(T::schema()),
            components: components
                .map(|(name, schema)| (name, json(schema)))
                .collect(),
            others: others.map(|field| (field.path, *field)).collect(),
        }
    }

    /// Paths of the fields of `body` that the server does not know. Fails if it knows a field and cannot
    /// honor its value.
    pub fn unknown(&self, body: &Value) -> ApiResult<Vec<String>> {
        let mut unknown = Vec::new();
        self.search(&[&self.schema], body, "", 0, &mut unknown)?;
        Ok(unknown)
    }

    fn search(
        &self,
        schemas: &[&Value],
        value: &Value,
        path: &str,
        depth: usize,
        unknown: &mut Vec<String>,
    ) -> ApiResult<()> {
        if depth > MAX_DEPTH {
            return Ok(());
        }
        let parts = self.parts(schemas);
        match value {
            Value::Array(list) => {
                let items: Vec<&Value> =
                    parts.iter().filter_map(|part| part.get("items")).collect();
                let objects = list
                    .iter()
                    .filter(|item| item.is_object() || item.is_array());
                for item in objects {
                    self.search(&items, item, path, depth + 1, unknown)?;
                }
            }
            Value::Object(map) => {
                let open = parts.iter().any(|part| is_open(part)) || parts.is_empty();
                for (name, value) in map {
                    let inner = join(path, name);
                    if let Some(other) = self.others.get(inner.as_str()) {
                        other.check(value)?;
                        continue;
                    }
                    let known: Vec<&Value> = property(&parts, name).collect();
                    if !known.is_empty() {
                        self.search(&known, value, &inner, depth + 1, unknown)?;
                    } else if !open && unknown.len() < MAX_UNKNOWN && !unknown.contains(&inner) {
                        unknown.push(inner);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Description of the first part of `body` that does not match the schema: the path, the accepted forms
    /// and what is there instead.
    pub fn mismatch(&self, body: &Value) -> Option<String> {
        self.compare(&[&self.schema], body, "", 0)
    }

    /// The forms that a field accepts, such as `a string or a list of strings`.
    pub fn forms(&self, name: &str) -> Option<String> {
        let parts = self.parts(&[&self.schema]);
        let known: Vec<&Value> = property(&parts, name).collect();
        let parts = self.parts(&known);
        (!parts.is_empty()).then(|| self.described(&parts, 0))
    }

    fn compare(
        &self,
        schemas: &[&Value],
        value: &Value,
        path: &str,
        depth: usize,
    ) -> Option<String> {
        let parts = self.parts(schemas);
        if depth > MAX_DEPTH || parts.iter().any(|part| part.get("type").is_none()) {
            return None;
        }
        let fitting: Vec<&Value> = parts
            .iter()
            .copied()
            .filter(|part| fits(part, value))
            .collect();
        if fitting.is_empty() && !parts.is_empty() {
            let forms = self.described(&parts, 0);
            let found = found(value);
            return Some(match path {
                "" => format!("the request body must be {forms}, not {found}"),
                path => format!("`{path}` must be {forms}, not {found}"),
            });
        }
        match value {
            Value::Array(list) => {
                let items: Vec<&Value> = fitting
                    .iter()
                    .filter_map(|part| part.get("items"))
                    .collect();
                let items = self.parts(&items);
                list.iter().enumerate().find_map(|(index, item)| {
                    self.compare(&items, item, &format!("{path}[{index}]"), depth + 1)
                })
            }
            Value::Object(map) => {
                let required = fitting
                    .iter()
                    .filter_map(|part| part.get("required")?.as_array());
                let missing = required.flatten().filter_map(Value::as_str);
                if let Some(name) = missing.into_iter().find(|name| !map.contains_key(*name)) {
                    return Some(format!("missing field `{}`", join(path, name)));
                }
                map.iter().find_map(|(name, value)| {
                    let known: Vec<&Value> = property(&fitting, name).collect();
                    match known.is_empty() {
                        true => None,
                        false => self.compare(&known, value, &join(path, name), depth + 1),
                    }
                })
            }
            _ => None,
        }
    }

    /// The schemas that `schemas` are made of, without references and alternatives.
    fn parts<'a>(&'a self, schemas: &[&'a Value]) -> Vec<&'a Value> {
        let mut parts = Vec::new();
        let mut left: Vec<(&Value, usize)> =
            schemas.iter().rev().map(|&schema| (schema, 0)).collect();
        while let Some((schema, depth)) = left.pop() {
            let reference = schema.get("$ref").and_then(Value::as_str);
            let name = reference.and_then(|reference| reference.rsplit('/').next());
            if depth > MAX_DEPTH {
                continue;
            }
            if let Some(name) = name {
                left.extend(self.components.get(name).map(|schema| (schema, depth + 1)));
                continue;
            }
            let lists = ["allOf", "oneOf", "anyOf"].map(|key| schema.get(key)?.as_array());
            if lists.iter().all(Option::is_none) {
                parts.push(schema);
            }
            let inner = lists.into_iter().flatten().flatten();
            left.extend(inner.rev().map(|schema| (schema, depth + 1)));
        }
        parts
    }

    /// The forms of a value in words.
    fn described(&self, parts: &[&Value], depth: usize) -> String {
        let mut forms: Vec<String> = Vec::new();
        for part in parts {
            for kind in kinds(part).filter(|&kind| kind != "null") {
                let form = match kind {
                    "string" => match part.get("enum").and_then(Value::as_array) {
                        Some(list) => {
                            let list: Vec<String> = list.iter().map(Value::to_string).collect();
                            list.join(" or ")
                        }
                        None => "a string".to_owned(),
                    },
                    "boolean" => "true or false".to_owned(),
                    "integer" | "number" => number(part, kind),
                    "array" if depth < 2 => {
                        let items = part.get("items").map(|items| self.parts(&[items]));
                        let items = self.described(&items.unwrap_or_default(), depth + 1);
                        format!("a list of ({items})")
                    }
                    "array" => "a list".to_owned(),
                    _ => "an object".to_owned(),
                };
                if !forms.contains(&form) {
                    forms.push(form);
                }
            }
        }
        match forms.is_empty() {
            true => "any value".to_owned(),
            false => forms.join(" or "),
        }
    }
}

/// True if the schema allows fields that it does not name.
fn is_open(part: &Value) -> bool {
    let is_free = part.get("properties").is_none() && part.get("items").is_none();
    part.get("additionalProperties")
        .is_some_and(|more| more != &Value::Bool(false))
        || is_free && (part.get("type").is_none() || kinds(part).any(|kind| kind == "object"))
}

/// Schemas of a property.
fn property<'a>(parts: &[&'a Value], name: &str) -> impl Iterator<Item = &'a Value> {
    let name = name.to_owned();
    let parts = parts.to_vec();
    parts
        .into_iter()
        .filter_map(move |part| part.get("properties")?.get(&name))
}

/// Types that a schema allows.
fn kinds(part: &Value) -> impl Iterator<Item = &str> {
    let (one, many) = match part.get("type") {
        Some(Value::String(kind)) => (Some(kind.as_str()), None),
        Some(Value::Array(list)) => (None, Some(list.iter().filter_map(Value::as_str))),
        _ => (None, None),
    };
    one.into_iter().chain(many.into_iter().flatten())
}

/// True if a value has a type of the schema and is within its bounds.
fn fits(part: &Value, value: &Value) -> bool {
    let has = |kind: &str| kinds(part).any(|known| known == kind);
    match value {
        Value::Null => has("null"),
        Value::Bool(_) => has("boolean"),
        Value::String(text) => {
            let listed = part.get("enum").and_then(Value::as_array);
            let listed = listed.is_none_or(|list| list.iter().any(|known| known == text));
            has("string") && listed
        }
        Value::Array(_) => has("array"),
        Value::Object(_) => has("object"),
        Value::Number(number) => {
            let is_integer = number.is_i64() || number.is_u64();
            let (low, high) = bounds(part);
            let value = number.as_f64().unwrap_or(f64::NAN);
            (has("number") || has("integer") && is_integer)
                && low.is_none_or(|low| low <= value)
                && high.is_none_or(|high| value <= high)
        }
    }
}

/// Smallest and largest number that a schema allows.
fn bounds(part: &Value) -> (Option<f64>, Option<f64>) {
    let given = |name: &str| part.get(name).and_then(Value::as_f64);
    let (low, high) = (given("minimum"), given("maximum"));
    let is_narrow = part.get("format").and_then(Value::as_str) == Some("int32");
    let (least, most) = match low {
        Some(low) if low >= 0.0 => (low, f64::from(u32::MAX)),
        _ => (f64::from(i32::MIN), f64::from(i32::MAX)),
    };
    match is_narrow {
        true => (low.or(Some(least)), high.or(Some(most))),
        false => (low, high),
    }
}

fn number(part: &Value, kind: &str) -> String {
    let kind = match kind {
        "integer" => "an integer",
        _ => "a number",
    };
    match bounds(part) {
        (Some(low), Some(high)) => format!("{kind} from {low} to {high}"),
        (Some(low), None) => format!("{kind} of at least {low}"),
        (None, Some(high)) => format!("{kind} of at most {high}"),
        (None, None) => kind.to_owned(),
    }
}

/// The value in words.
fn found(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(on) => on.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => {
            let text: String = text.chars().take(32).collect();
            format!("the string {text:?}")
        }
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

fn join(path: &str, name: &str) -> String {
    let name: String = name.chars().take(MAX_PATH).collect();
    match path {
        "" => name,
        path => format!("{path}.{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Debug, Deserialize, ToSchema)]
    #[allow(dead_code, reason = "only its schema is used")]
    struct Outer {
        name: String,
        list: Option<Vec<Inner>>,
        #[schema(value_type = Option<Object>)]
        free: Option<Value>,
        either: Option<Either>,
        #[serde(flatten)]
        inner: Inner,
    }

    #[derive(Debug, Deserialize, ToSchema)]
    #[allow(dead_code, reason = "only its schema is used")]
    struct Inner {
        #[schema(minimum = -1, maximum = 10)]
        top_k: Option<i32>,
    }

    #[derive(Debug, Deserialize, ToSchema)]
    #[serde(untagged)]
    #[allow(dead_code, reason = "only its schema is used")]
    enum Either {
        Text(String),
        Texts(Vec<String>),
    }

    impl RequestBody for Outer {
        const OTHER_FIELDS: &'static [&'static [OtherField]] = &[&[
            OtherField::any("user"),
            OtherField::only("store", &[Literal::Bool(false)], "nothing is stored"),
            OtherField::only("inner.deep", &[], "no"),
        ]];
    }

    #[test]
    fn unknown_fields_are_found_at_every_level() {
        let fields = RequestFields::of::<Outer>();
        let body = json!({
            "name": "a", "top_k": 1, "user": "u", "store": false, "shade": 1,
            "free": {"anything": 1}, "either": ["x"],
            "list": [{"top_k": 1}, {"top_q": 2}, {"top_q": 3}],
        });
        assert_eq!(fields.unknown(&body).unwrap(), ["shade", "list.top_q"]);
        let error = fields
            .unknown(&json!({"name": "a", "store": true}))
            .unwrap_err();
        assert!(error.message.contains("`store`") && error.message.contains("false"));
        assert!(fields.unknown(&json!({"store": null})).unwrap().is_empty());
    }

    #[test]
    fn type_errors_name_the_path_and_the_forms() {
        let problem = |body: Value| RequestFields::of::<Outer>().mismatch(&body);
        assert_eq!(problem(json!({"name": "a", "top_k": 3})), None);
        let wrong = problem(json!({"name": "a", "list": [{}, {"top_k": "x"}]})).unwrap();
        assert_eq!(
            wrong,
            "`list[1].top_k` must be an integer from -1 to 10, not the string \"x\""
        );
        let wrong = problem(json!({"name": "a", "either": 5})).unwrap();
        assert_eq!(
            wrong,
            "`either` must be a string or a list of (a string), not 5"
        );
        assert_eq!(problem(json!({})).unwrap(), "missing field `name`");
        assert!(
            problem(json!({"name": "a", "top_k": 11}))
                .unwrap()
                .ends_with("not 11")
        );
    }
}
