use proptest::prelude::*;
use serde_json::json;

use super::*;

fn compile(source: &str) -> Result<Expression, CompileError> {
    Expression::compile(source)
}

fn evaluates(source: &str, expected: bool) {
    let pod = json!({
        "metadata": {"name": "web-0", "labels": {"app": "web", "tier": "front"}},
        "spec": {"priority": 1000, "containers": [
            {"name": "a", "ports": [{"port": 80}, {"port": 443}]},
            {"name": "b", "ports": []},
        ]},
    });
    let namespace = json!({"metadata": {"name": "shop", "labels": {}}});
    let expression = compile(source).unwrap();
    assert_eq!(
        expression.evaluate(&[("pod", &pod), ("namespace", &namespace)]),
        Ok(expected),
        "{source}"
    );
}

#[test]
fn conditions_are_evaluated_over_pod_and_namespace() {
    for (source, expected) in [
        ("true", true),
        (
            "pod.metadata.name == 'web-0' && namespace.metadata.name == 'shop'",
            true,
        ),
        ("pod.metadata.labels['app'] in ['web', 'db']", true),
        ("has(pod.metadata.annotations)", false),
        (
            "has(pod.metadata.labels.app) ? pod.metadata.labels.app == 'db' : true",
            false,
        ),
        ("'x' in namespace.metadata.labels", false),
        (
            "'namespace' == 'name' + 'space' && namespace.metadata.name != 'namespace'",
            true,
        ),
        ("pod.spec.priority > 999", true),
        ("pod.spec.priority * 2 == 2000", true),
        (
            "pod.spec.containers.exists(c, c.ports.exists(p, p.port == 443))",
            true,
        ),
        ("pod.spec.containers.all(c, size(c.ports) > 0)", false),
        (
            "pod.spec.containers.filter(c, size(c.ports) == 0).map(c, c.name) == ['b']",
            true,
        ),
        ("pod.metadata.labels.all(k, k.startsWith('t'))", false),
        ("pod.metadata.name.matches('^web-[0-9]{1,3}$')", true),
        (
            r"pod.metadata.name.matches(r'^\w+-\d$') && pod.metadata.name.matches(r'\p{L}')",
            true,
        ),
        ("type(pod.metadata.name) == string", true),
        (
            "!(pod.metadata.name.endsWith('-1') || pod.metadata.name.contains('db'))",
            true,
        ),
    ] {
        evaluates(source, expected);
    }
}

#[test]
fn expressions_that_cannot_be_evaluated_return_an_error() {
    fn check(source: &str, expected: &str) {
        let error = compile(source)
            .unwrap()
            .evaluate(&[("pod", &json!({"n": 1})), ("namespace", &json!({}))]);
        assert_eq!(error.unwrap_err().to_string(), expected, "{source}");
    }
    check("pod.absent == 1", "No such key: absent");
    check("pod.n", "must evaluate to bool");
    check(
        "pod.n + 'a' == 'a'",
        "Unsupported binary operator 'add': Int(1), String(\"a\")",
    );
}

fn rejects(source: &str, expected: &str) {
    assert_eq!(compile(source).unwrap_err().to_string(), expected, "{source}");
}

#[test]
fn size_and_nesting_are_limited() {
    rejects(
        &format!("'{}' == ''", "a".repeat(MAX_SOURCE_BYTES)),
        "may not be more than 10240 bytes",
    );
    let many = "is too complex: more than 512 operators";
    rejects(&vec!["1"; 2_000].join("+"), many);
    rejects(&format!("pod{}", "[0]".repeat(2_000)), many);
    rejects(&format!("pod{}", ".a()".repeat(600)), many);
    rejects(&vec!["pod"; 600].join(" in "), many);
    rejects(&"!".repeat(600), many);
    rejects(
        &format!("{}1{}", "(".repeat(90), ")".repeat(90)),
        "is too complex: more than 32 nested brackets",
    );
    rejects(&vec!["1"; 400].join("+"), "is too complex: more than 256 levels");
    rejects(
        &format!("pod in [{}]", vec!["1"; 1_100].join(",")),
        "is too complex: more than 1024 parts",
    );
    rejects(
        "pod.a.all(a, pod.b.all(b, pod.c.all(c, a == b)))",
        "is too complex: more than 2 nested loops",
    );
}

#[test]
fn undeclared_names_and_messages_are_rejected() {
    rejects("node.metadata.name == 'a'", "undeclared reference to 'node'");
    rejects("pod.a.all(a, b)", "undeclared reference to 'b'");
    rejects("pod.a.all(a, true) && a", "undeclared reference to 'a'");
    rejects("evil(pod)", "undeclared reference to function 'evil'");
    rejects("pod.evil()", "undeclared reference to function 'evil'");
    rejects(
        "google.protobuf.Duration{seconds: 1} == pod",
        "messages cannot be constructed",
    );
}

#[test]
fn patterns_are_short_literals_that_do_not_grow_when_compiled() {
    rejects("pod.a.matches(pod.b)", "the pattern of matches must be a literal");
    rejects(
        &format!("pod.a.matches('{}')", "a".repeat(129)),
        "is too complex: more than 128 bytes in a pattern",
    );
    rejects(
        "pod.a.matches('a{9}b{9}')",
        "is too complex: more than 1 counted repetition in a pattern",
    );
    let counted = "a pattern with groups or with classes such as \\w may not count repetitions";
    rejects("pod.a.matches('(ab){9}')", counted);
    rejects("pod.a.matches('(?x)(ab) {9}')", counted);
    rejects(r"pod.a.matches(r'\w{9}')", counted);
    rejects(r"pod.a.matches('[\\d]{9}')", counted);
    rejects(
        &format!("pod.a.matches(r'{}')", r"\w".repeat(9)),
        "is too complex: more than 8 classes in a pattern",
    );
    rejects(
        "pod.a.matches('a{1,999}')",
        "a pattern may repeat at most 99 times",
    );
    rejects(
        "pod.a.all(a, pod.b.all(b, b.matches('x')))",
        "matches may not be used in nested loops",
    );
}

#[test]
fn conditions_must_be_boolean() {
    for source in [
        "'a'",
        "1",
        "[true]",
        "{'a': true}",
        "'a' + 'b'",
        "-1",
        "size(pod)",
    ] {
        rejects(source, "must evaluate to bool");
    }
}

#[test]
fn syntax_errors_show_the_source_as_written() {
    assert_eq!(
        compile("namespace namespace")
            .unwrap_err()
            .to_string()
            .split(" | ")
            .nth(1),
        Some("namespace namespace")
    );
    for source in ["", "pod.", "pod ==", "pod &&& pod", "'open", "\u{0}"] {
        assert!(
            matches!(compile(source), Err(CompileError::Syntax(_))),
            "{source:?}"
        );
    }
}

#[test]
fn expressions_at_the_limits_do_not_overflow_the_stack() {
    for source in [
        vec!["1"; 200].join("+") + " == 200",
        format!("pod{} == 1", "[0]".repeat(200)),
        format!("pod{} == 1", ".a".repeat(200)),
        format!("{}true{}", "(".repeat(32), ")".repeat(32)),
        vec!["true"; 250].join("&&"),
        format!("{}true", "true ? true : ".repeat(80)),
        format!("{}true", "!".repeat(200)),
        format!("pod{} == 'x'", ".contains('a')".repeat(100)),
    ] {
        let expression = compile(&source).unwrap_or_else(|error| panic!("{error}: {source}"));
        drop(expression.evaluate(&[("pod", &json!([])), ("namespace", &json!({}))]));
    }
}

#[test]
fn loops_limit_the_size_of_lists_and_maps() {
    let check = |source: &str, items: usize, expected: Result<bool, EvaluateError>| {
        let pod = json!({"list": vec![1; items], "map": {}});
        assert_eq!(
            compile(source).unwrap().evaluate(&[("pod", &pod)]),
            expected,
            "{source} over {items}"
        );
    };
    let too_many = |max| Err(EvaluateError::TooManyItems { max });
    check("pod.list[0] == 1", 10_000, Ok(true));
    check("pod.list.all(a, a == 1)", 512, Ok(true));
    check("pod.list.all(a, a == 1)", 513, too_many(512));
    check(
        "pod.list.exists(a, string(a).matches('^[0-9]{1,3}$'))",
        64,
        Ok(true),
    );
    check(
        "pod.list.exists(a, string(a).matches('^[0-9]{1,3}$'))",
        65,
        too_many(64),
    );
    check("pod.list.all(a, a == 1) && 'x'.matches('x')", 512, Ok(true));
    check("pod.list.all(a, pod.list.exists(b, a == b))", 128, Ok(true));
    check("pod.list.all(a, pod.list.exists(b, a == b))", 129, too_many(128));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_text_is_compiled_or_rejected(source in r#"(pod|namespace|[a-z]{1,3}|[0-9]|[-+*/%?:&|=<>!.,()\[\]{}'" ]){0,40}"#) {
        if let Ok(expression) = compile(&source) {
            drop(expression.evaluate(&[("pod", &json!({"a": [1]})), ("namespace", &json!({}))]));
        }
    }
}
