mod applied;
mod audited;
mod bindings;
mod lanes;
mod param_kinds;

use std::sync::Arc;

use drydock_machinery::policy_expression::{Decisions, Input, Value as Cel};
use serde_json::{Value, json};

use super::definition::{self, Definition, ValidatingPrograms};
use super::evaluation::{Conditions, Finding, Findings, conditions, validate};

fn policy(spec: &Value) -> Definition<ValidatingPrograms> {
    definition::validating(&Arc::new(json!({"metadata": {"name": "p"}, "spec": spec})))
}

fn input() -> Input {
    let mut input = Input::default();
    for (name, value) in [
        ("object", json!({"metadata": {"name": "n"}, "spec": {"size": 3}})),
        ("oldObject", Value::Null),
        ("request", json!({"operation": "CREATE"})),
        ("namespaceObject", Value::Null),
    ] {
        input.set(name, Cel::from_json(&value));
    }
    input
}

fn findings(spec: &Value) -> Findings {
    let programs = policy(spec).programs().unwrap();
    validate(&programs, &input(), &Decisions::new()).unwrap()
}

#[test]
fn the_message_is_that_of_the_expression_or_else_the_fixed_one_or_else_the_expression() {
    let found = findings(&json!({"validations": [
        {"expression": "object.spec.size > 2"},
        {"expression": "object.spec.size > 3", "message": " fixed ", "messageExpression": "'size ' + string(object.spec.size)"},
        {"expression": "object.spec.size > 3", "message": " fixed ", "messageExpression": "object.absent", "reason": "Forbidden"},
        {"expression": "object.spec.size > 3", "message": "fixed", "messageExpression": "'two\\nlines'"},
        {"expression": " object.spec.size > 3 ", "messageExpression": "' '"},
        {"expression": "object.absent"},
        {"expression": "object.spec.size"},
    ]}));
    let denied = |message: &str| Finding::Denied(message.to_owned(), None);
    assert_eq!(
        found.validations,
        [
            Finding::Passed,
            denied("size 3"),
            Finding::Denied("fixed".to_owned(), Some("Forbidden".to_owned())),
            denied("fixed"),
            denied("failed expression: object.spec.size > 3"),
            Finding::Failed("expression 'object.absent' resulted in error: no such key: absent".to_owned()),
            denied("failed expression: object.spec.size"),
        ]
    );
}

#[test]
fn annotations_are_texts_or_absent() {
    let found = findings(&json!({"validations": [], "auditAnnotations": [
        {"key": "a", "valueExpression": "' x '"},
        {"key": "b", "valueExpression": "null"},
        {"key": "c", "valueExpression": "''"},
        {"key": "d", "valueExpression": "1"},
        {"key": "e", "valueExpression": "object.absent"},
    ]}));
    let error = |text: &str| Err(text.to_owned());
    assert_eq!(
        found.annotations,
        [
            ("a".to_owned(), Ok("x".to_owned())),
            (
                "d".to_owned(),
                error(
                    "valueExpression '1' resulted in unsupported return type: int. Return type must be either string or null."
                )
            ),
            (
                "e".to_owned(),
                error("expression 'object.absent' resulted in error: no such key: absent")
            ),
        ]
    );
}

#[test]
fn a_condition_that_is_false_decides_before_errors_do() {
    let check = |expressions: &[&str], expected: &Conditions| {
        let list: Vec<Value> = expressions
            .iter()
            .map(|expression| json!({"name": "c", "expression": expression}))
            .collect();
        let programs = policy(&json!({"matchConditions": list, "validations": []}))
            .programs()
            .unwrap();
        let found = conditions(
            &programs.conditions,
            &programs.composed,
            &input(),
            &Decisions::new(),
        );
        assert_eq!(&found.unwrap(), expected, "{expressions:?}");
    };
    check(&[], &Conditions::Met);
    check(&["true", "request.operation == 'CREATE'"], &Conditions::Met);
    check(&["object.absent", "false"], &Conditions::NotMet);
    let absent = "expression 'object.absent' resulted in error: no such key: absent";
    check(&["object.absent", "true"], &Conditions::Failed(absent.to_owned()));
    let other = "expression 'object.other' resulted in error: no such key: other";
    check(
        &["object.absent", "object.other", "object.absent"],
        &Conditions::Failed(format!("[{absent}, {other}]")),
    );
}

#[test]
fn a_policy_that_cannot_be_compiled_says_why() {
    let check = |spec: &Value, expected: &str| {
        assert_eq!(policy(spec).programs().err().as_deref(), Some(expected), "{spec}");
    };
    check(
        &json!({"validations": [{"expression": "params.x"}]}),
        "compilation error: compilation failed: expression 'params.x': undeclared reference to 'params'",
    );
    check(
        &json!({"validations": [{"expression": "true", "messageExpression": "authorizer.path('/').check('get').reason()"}]}),
        "compilation error: compilation failed: expression 'authorizer.path('/').check('get').reason()': undeclared \
         reference to 'authorizer'",
    );
    check(
        &json!({"variables": [{"name": "a", "expression": "variables.b"}, {"name": "b", "expression": "1"}]}),
        "compilation error: compilation failed: expression 'variables.b': undefined field 'b'",
    );
    let unreadable = policy(&json!({"validations": 1})).programs().err().unwrap();
    assert!(
        unreadable.starts_with("the policy cannot be read: "),
        "{unreadable}"
    );
    // What cannot be read fails, and is not ignored.
    assert!(!policy(&json!({"validations": 1, "failurePolicy": "Ignore"})).ignores_failures);
}

#[test]
fn the_namespace_is_looked_up_only_for_policies_that_name_it() {
    let sees =
        |expression: &str| policy(&json!({"validations": [{"expression": expression}]})).sees_namespace;
    assert!(sees("namespaceObject.metadata.name == 'a'"));
    assert!(!sees("object.metadata.namespace == 'a'"));
}
