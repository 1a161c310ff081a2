use proptest::prelude::*;
use serde_json::json;

use super::*;

const VARIABLES: [&str; 8] = [
    "object",
    "oldObject",
    "request",
    "params",
    "namespaceObject",
    "variables",
    "authorizer",
    "self",
];

fn declarations() -> Declarations<'static> {
    Declarations {
        variables: &VARIABLES,
        composed: &["replicas", "broken", "late"],
        patch_types: true,
    }
}

fn compile(source: &str) -> Program {
    Program::compile(source, &declarations()).unwrap_or_else(|error| panic!("{error}: {source}"))
}

fn input() -> Input {
    let object = json!({
        "apiVersion": "example.com/v1",
        "metadata": {"name": "web-0", "labels": {"app": "web", "a/b": "x"}, "annotations": null},
        "spec": {
            "replicas": 3, "ratio": 1.5, "whole": 2.0, "image": "registry.example.com/web:v1.2.3",
            "list": [3, 1, 2], "names": ["b", "a"], "memory": "1.5Gi",
            "containers": [{"name": "a", "ports": [{"port": 80}]}, {"name": "b", "ports": []}],
        },
    });
    let mut input = Input::default();
    input.set("object", Value::from_json(&object));
    input.set("oldObject", Value::Null);
    input.set("authorizer", Value::Check(Arc::new(Check::default())));
    input.set(
        "authorizer.requestResource",
        Value::Check(Arc::new(Check::of_resource(ResourceSubject {
            group: "g".to_owned(),
            resource: "r".to_owned(),
            ..ResourceSubject::default()
        }))),
    );
    input
}

/// The result as text, or the error without the expression.
fn run(source: &str) -> Result<String, String> {
    let program = compile(source);
    let composed = [
        ("replicas", "object.spec.replicas"),
        ("broken", "object.absent"),
        ("late", "variables.replicas + 1"),
    ]
    .map(|(name, source)| Composed {
        name: name.to_owned(),
        program: Program::compile(source, &declarations()),
    });
    let outcome = evaluating(move || {
        let decisions = Decisions::new();
        let (input, mut budget) = (input(), POLICY_BUDGET);
        let mut scope = Scope::new(&input, &composed, &decisions);
        scope.evaluate(&program, &mut budget)
    });
    let value = outcome.unwrap().unwrap_or_else(|stop| Err(stop.to_string()));
    let prefix = format!("expression '{source}' resulted in error: ");
    value
        .map(|value| value.to_string())
        .map_err(|error| error.strip_prefix(&prefix).unwrap_or(&error).to_owned())
}

fn gives(rows: &[(&str, &str)]) {
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|(source, expected)| {
            let found = run(source);
            (found.as_deref() != Ok(expected)).then(|| format!("{source}: {found:?}, not {expected:?}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn fails(rows: &[(&str, &str)]) {
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|(source, expected)| {
            let found = run(source);
            (found.as_ref().map_err(String::as_str) != Err(expected))
                .then(|| format!("{source}: {found:?}, not {expected:?}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// From the language definition (cel-spec `tests/simple`), and cel-go `interpreter/interpreter_test.go`.
#[test]
fn the_language() {
    gives(&[
        ("1 + 2 * 3 - 4 / 2 % 3", "5"),
        ("1u + 2u", "3"),
        ("-7 / 2", "-3"),
        ("-7 % 2", "-1"),
        ("1.0 / 4.0", "0.25"),
        ("'a' + 'b'", "ab"),
        ("[1] + [2]", "[1, 2]"),
        ("1 == 1.0 && 1u == 1 && 2 > 1.5 && 1u < 2", "true"),
        ("1 == 'a' || [1] == [1.0]", "true"),
        ("null == null && !(null == 0)", "true"),
        ("{'a': 1}.a + {'b': 2}['b']", "3"),
        ("{1: 'a'}[1u] + {1: 'a'}[1.0]", "aa"),
        ("2 in [1, 2] && 'a' in {'a': 1} && !(3.0 in [1, 2])", "true"),
        ("true ? 1 : 2", "1"),
        ("1 / 0 == 1 || true", "true"),
        ("false && 1 / 0 == 1", "false"),
        (
            "[1, 2, 3].all(x, x > 0) && [1, 2].exists(x, x == 2) && [1, 2].exists_one(x, x == 2)",
            "true",
        ),
        ("[0, 1].exists(x, 1 / x == 1)", "true"),
        ("[1, 2, 3].map(x, x * 2)", "[2, 4, 6]"),
        ("[1, 2, 3].map(x, x > 1, x * 2)", "[4, 6]"),
        ("[1, 2, 3].filter(x, x > 1)", "[2, 3]"),
        ("{'a': 1, 'b': 2}.map(k, k)", "[a, b]"),
        ("has(object.spec.replicas) && !has(object.spec.absent)", "true"),
        ("has(object.spec.replicas.deeper)", "false"),
        (
            "object.metadata.labels['a/b'] + object.metadata.labels.`a/b`",
            "xx",
        ),
        ("oldObject == null", "true"),
        (
            "type(1) == int && type(object.spec.ratio) == double && type(type(1)) == type",
            "true",
        ),
        ("type(duration('1s')) == google.protobuf.Duration", "true"),
        ("object.spec.whole", "2"),
        ("size('äö') + size([1]) + size({}) + 'abc'.size()", "6"),
        ("int('12') + int(1.9) + int(3u)", "16"),
        (
            "string(1.5) + string(1e30) + string(true) + string(2u)",
            "1.51e+30true2",
        ),
        ("double('1.5') + double(1)", "2.5"),
        ("bool('True') && dyn(true)", "true"),
        ("duration('1h30m').getMinutes()", "90"),
        ("string(duration('1500ms'))", "1.5s"),
        ("timestamp('2024-01-31T10:20:30Z').getMonth()", "0"),
        ("timestamp('2024-01-31T10:20:30Z').getHours('+02:00')", "12"),
        (
            "timestamp('2024-01-31T10:20:30Z') + duration('1h') > timestamp('2024-01-31T11:00:00Z')",
            "true",
        ),
        ("timestamp('2024-01-01T00:00:00Z').getDayOfWeek()", "1"),
        ("variables.replicas + variables.late", "7"),
        ("[1, 2].map(x, [3, 4].map(y, x * y))", "[[3, 4], [6, 8]]"),
    ]);
    fails(&[
        ("object.absent", "no such key: absent"),
        ("object.metadata.annotations.x", "no such key: x"),
        ("object.spec.list[7]", "index out of bounds: 7"),
        ("object.spec.list.x", "unsupported index type 'string' in list"),
        ("object.spec.replicas + 'a'", "no such overload"),
        ("object.metadata.annotations + 1", "no such overload: _+_"),
        ("object.metadata.annotations > 1", "no such overload: _>_"),
        (
            "object.spec.replicas.lowerAscii()",
            "no such overload: lowerAscii(int)",
        ),
        ("9223372036854775807 + 1", "integer overflow"),
        ("1 / 0", "division by zero"),
        ("1 % 0", "modulus by zero"),
        ("1u - 2u", "unsigned integer overflow"),
        (
            "object.spec.replicas.all(x, true)",
            "got 'types.Int', expected iterable type",
        ),
        ("[1, 2].all(x, object.absent)", "no such key: absent"),
        ("int('x')", "type conversion error from 'string' to 'int'"),
        (
            "variables.broken",
            "composited variable \"broken\" fails to evaluate: no such key: absent",
        ),
        (
            "lists.range(1000000).map(x, x)",
            "operation cancelled: actual cost limit exceeded",
        ),
    ]);
}

/// From cel-go `ext/strings_test.go`, `ext/formatting_test.go`, `ext/lists_test.go`, `ext/sets_test.go`,
/// `ext/comprehensions_test.go` and `cel/cel_test.go` (optional values).
#[test]
fn the_extended_libraries() {
    gives(&[
        ("'tacocat'.charAt(3)", "o"),
        ("'tacocat'.charAt(7)", ""),
        ("'ta©o©αT'.indexOf('©')", "2"),
        ("'tacocat'.indexOf('a', 3)", "5"),
        ("'tacocat'.indexOf('none')", "-1"),
        ("'tacocat'.lastIndexOf('at')", "5"),
        ("'ta©o©αT'.lastIndexOf('©', 4)", "4"),
        ("'tacocat'.lastIndexOf('')", "7"),
        ("'TacoCÆt'.lowerAscii()", "tacocÆt"),
        ("'tacoCαt'.upperAscii()", "TACOCαT"),
        ("'hello hello'.replace('he', 'we')", "wello wello"),
        ("'hello hello'.replace('he', 'we', 1)", "wello hello"),
        ("'hello'.replace('', '_')", "_h_e_l_l_o_"),
        ("'hello world'.split(' ')", "[hello, world]"),
        ("'hello world events!'.split(' ', 2)", "[hello, world events!]"),
        ("'abc'.split('')", "[a, b, c]"),
        ("'abc'.split('', 2)", "[a, bc]"),
        ("'tacocat'.substring(4)", "cat"),
        ("'ta©o©αT'.substring(2, 6)", "©o©α"),
        ("' \\f\\n\\r\\t\\vtext '.trim()", "text"),
        ("['x', 'y'].join() + ['x', 'y'].join('-')", "xyx-y"),
        (
            "strings.quote('first\\nsecond \"x\"')",
            "\"first\\nsecond \\\"x\\\"\"",
        ),
        (
            "'%s %d%% %b %x %X %o'.format(['a', 5, 5, 30, 'hi', 8])",
            "a 5% 101 1e 6869 10",
        ),
        ("'%.2f'.format([12345.678])", "12,345.68"),
        ("'%e'.format([1052.032911275])", "1.052033\u{202f}×\u{202f}10⁰³"),
        (
            "'%s'.format([['abc', 3.14, null, [9, 8], timestamp('2024-01-01T00:00:00Z')]])",
            "[\"abc\", 3.140000, null, [9, 8], timestamp(\"2024-01-01T00:00:00Z\")]",
        ),
        ("'%s'.format([{'b': 2, 'a': 'x'}])", "{\"a\":\"x\", \"b\":2}"),
        ("[1, 2, 3, 4].slice(1, 3)", "[2, 3]"),
        ("[1, [2, [3]]].flatten()", "[1, 2, [3]]"),
        ("[1, [2, [3]]].flatten(2)", "[1, 2, 3]"),
        ("[3, 1, 2].sort()", "[1, 2, 3]"),
        ("['foo', 'a', 'ba'].sortBy(x, size(x))", "[a, ba, foo]"),
        ("lists.range(4)", "[0, 1, 2, 3]"),
        ("[1, 2].reverse() + [1, 1.0, 2].distinct()", "[2, 1, 1, 2]"),
        (
            "sets.contains([1, 2], [2, 1u]) && !sets.contains([1], [2])",
            "true",
        ),
        (
            "sets.equivalent([1], [1u, 1.0]) && sets.intersects([1, 2], [2, 3])",
            "true",
        ),
        ("[1, 2].transformList(i, v, i + v)", "[1, 3]"),
        ("[1, 2].transformList(i, v, i > 0, v)", "[2]"),
        ("{'a': 1}.transformMap(k, v, v + 1)", "{a: 2}"),
        ("{'a': 1, 'b': 2}.transformMap(k, v, v > 1, v)", "{b: 2}"),
        ("{'a': 'x'}.transformMapEntry(k, v, {v: k})", "{x: a}"),
        (
            "{'a': 1}.all(k, v, k == 'a' && v == 1) && [5].exists(i, v, i == 0 && v == 5)",
            "true",
        ),
        ("[1, 2].existsOne(i, v, v == 2)", "true"),
        ("object.?absent.?deeper.orValue('none')", "none"),
        ("object.spec[?'replicas'].optMap(r, r + 1).value()", "4"),
        ("optional.of(1).hasValue() && !optional.none().hasValue()", "true"),
        ("optional.ofNonZeroValue('').or(optional.of('x')).value()", "x"),
        ("[1, ?object.?absent, ?optional.of(2)]", "[1, 2]"),
        ("{?'a': optional.none(), ?'b': optional.of(1)}", "{b: 1}"),
        ("optional.of({'a': 1}).a.value()", "1"),
        ("optional.of(1).orValue(1 / 0)", "1"),
    ]);
    fails(&[
        ("'tacocat'.charAt(30)", "index out of range: 30"),
        (
            "'tacocat'.substring(5, 4)",
            "invalid substring range. start: 5, end: 4",
        ),
        (
            "'%d'.format(['a'])",
            "error during formatting: decimal clause can only be used on integers, was given string",
        ),
        (
            "'%z'.format([1])",
            "could not parse formatting clause: unrecognized formatting clause \"z\"",
        ),
        ("'%s %s'.format([1])", "index 1 out of range"),
        ("[1, 2].slice(1, 3)", "cannot slice(1, 3), list is length 2"),
        ("[1, 'a'].sort()", "list elements must have the same type"),
        ("optional.none().value()", "optional.none() dereference"),
        (
            "lists.range(-1)",
            "lists.range: size must be non-negative, got -1",
        ),
        (
            "[1, 1].transformMapEntry(i, v, {v: i})",
            "insert failed: key 1 already exists",
        ),
    ]);
}

/// From `k8s.io/apiserver/pkg/cel/library`: `library_test` tables of each library, and the examples of its documentation.
#[test]
fn the_libraries_of_kubernetes() {
    gives(&[
        (
            "[1, 2, 3].isSorted() && !['b', 'a'].isSorted() && [].isSorted()",
            "true",
        ),
        ("[1, 3].sum() + [1, 3].max() - [1, 3].min()", "6"),
        (
            "['a', 'b', 'b'].indexOf('b') + ['a', 'b', 'b'].lastIndexOf('b')",
            "3",
        ),
        ("[1.0, 2.0].sum()", "3"),
        ("[1, 2].includes(2) && 'a'.includes('a')", "true"),
        ("'abc 123'.find('[0-9]*') + 'abc 123'.find('[0-9]+')", "123"),
        ("'123 abc 456'.findAll('[0-9]+')", "[123, 456]"),
        ("'123 abc 456'.findAll('[0-9]+', 1)", "[123]"),
        (
            "'a1'.matches(r'^\\w\\d$') && !'é'.matches(r'^\\w$') && matches('x', 'x')",
            "true",
        ),
        (
            "']'.matches('^[]a]$') && '['.matches('^[[]$') && 'é'.matches('^[^a]$')",
            "true",
        ),
        (
            "url('https://user:pass@example.com:80/path?k1=a&k2=b&k2=c').getHost()",
            "example.com:80",
        ),
        (
            "url('https://[::1]:80/').getHostname() + url('https://[::1]:80/').getPort()",
            "::180",
        ),
        (
            "url('https://example.com/with space/').getEscapedPath()",
            "/with space/",
        ),
        (
            "url('https://example.com/p?k1=a&k2=b&k2=c%20d').getQuery()",
            "{k1: [a], k2: [b, c d]}",
        ),
        (
            "url('/path').getScheme() + url('HTTPS://example.com/').getScheme()",
            "https",
        ),
        ("isURL('../relative') || isURL('')", "false"),
        ("isURL('/path') && isURL('https://example.com:80/')", "true"),
        ("quantity('1.5Gi').compareTo(quantity('1536Mi'))", "0"),
        (
            "quantity('50k').isGreaterThan(quantity('49999')) && quantity('500m').isLessThan(quantity('1'))",
            "true",
        ),
        (
            "quantity('50k').asInteger() + quantity('1e3').asInteger()",
            "51000",
        ),
        (
            "quantity('50.703k').add(20).sub(quantity('20')).compareTo(quantity('50703'))",
            "0",
        ),
        (
            "isQuantity('1.3Gi') && !isQuantity('Gi') && !isQuantity('3zz') && !isQuantity('1..2')",
            "true",
        ),
        ("quantity('-5').sign() + sign(quantity('0'))", "-1"),
        (
            "quantity('50.5').isInteger() || quantity('9999999999999999999E').isLessThan(quantity('9223372036854775807'))",
            "false",
        ),
        ("ip('192.168.0.1').family() + ip('::1').family()", "10"),
        (
            "isIP('127.0.0.1') && !isIP('::ffff:1.2.3.4') && !isIP('127.0.0.1.0') && !isIP('fe80::1%en0')",
            "true",
        ),
        (
            "ip.isCanonical('2001:db8::abcd') && !ip.isCanonical('2001:DB8::ABCD')",
            "true",
        ),
        (
            "ip('127.0.0.1').isLoopback() && ip('169.254.1.1').isLinkLocalUnicast() && ip('224.0.0.1').isLinkLocalMulticast()",
            "true",
        ),
        (
            "ip('192.168.0.1').isGlobalUnicast() && !ip('255.255.255.255').isGlobalUnicast() && ip('0.0.0.0').isUnspecified()",
            "true",
        ),
        (
            "cidr('192.168.0.0/24').containsIP('192.168.0.1') && !cidr('192.168.0.0/24').containsIP(ip('192.168.1.1'))",
            "true",
        ),
        (
            "cidr('192.168.0.0/16').containsCIDR('192.168.10.0/24') && !cidr('10.0.0.0/8').containsCIDR('0.0.0.0/0')",
            "true",
        ),
        (
            "string(cidr('192.168.1.5/24').masked()) + string(cidr('::1/128').ip())",
            "192.168.1.0/24::1",
        ),
        ("cidr('192.168.0.0/24').prefixLength()", "24"),
        (
            "isCIDR('192.168.0.0/24') && !isCIDR('192.168.0.0/33') && !isCIDR('192.168.0.0')",
            "true",
        ),
        (
            "semver('1.2.3').compareTo(semver('1.2.3-rc1')) + semver('1.2.3').minor()",
            "3",
        ),
        ("isSemver('1.2') || isSemver('v1.0.0')", "false"),
        (
            "isSemver('v1.0', true) && semver('v01.2', true).major() == 1",
            "true",
        ),
        (
            "semver('1.0.0+a') == semver('1.0.0+b') && semver('1.0.1').isGreaterThan(semver('1.0.0'))",
            "true",
        ),
        ("format.dns1123Label().validate('my-label').hasValue()", "false"),
        (
            "format.dns1123Label().validate('contains a space').value()[0].startsWith('a lowercase RFC 1123 label')",
            "true",
        ),
        (
            "format.named('uuid').value().validate('not-a-uuid').value()[0]",
            "does not match the UUID format",
        ),
        (
            "format.dns1123LabelPrefix().validate('my-prefix-').hasValue() || format.named('unknown').hasValue()",
            "false",
        ),
        ("jsonpatch.escapeKey('k8s.io/my~label')", "k8s.io~1my~0label"),
        ("Object{spec: Object.spec{replicas: 1}}.spec.replicas", "1"),
    ]);
    fails(&[
        ("[].max()", "max called on empty list"),
        (
            "quantity('x')",
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        ("quantity('1.5').asInteger()", "cannot convert value to integer"),
        ("'a'.matches('(')", "error parsing regexp: `(`"),
    ]);
}

#[test]
fn authorization_checks_are_asked_for_one_by_one() {
    let program = compile(
        "authorizer.group('apps').resource('deployments').namespace('a').check('get').allowed() && \
         authorizer.requestResource.check('x').reason() == 'why' && \
         authorizer.serviceAccount('a', 'b').path('/healthz').check('get').allowed()",
    );
    let input = input();
    let mut decisions = Decisions::new();
    let mut asked = Vec::new();
    let value = loop {
        let mut scope = Scope::new(&input, &[], &decisions);
        match scope.evaluate(&program, &mut POLICY_BUDGET.clone()) {
            Ok(value) => break value,
            Err(Stop::Undecided(check)) => {
                asked.push(check.clone());
                let decision = Decision {
                    allowed: true,
                    reason: "why".to_owned(),
                    error: None,
                };
                assert!(decisions.insert(*check, decision).is_none());
            }
            Err(stop) => panic!("{stop}"),
        }
    };
    // The third check exceeds the cost of an expression, as in Kubernetes.
    assert!(
        value
            .unwrap_err()
            .ends_with("operation cancelled: actual cost limit exceeded")
    );
    let resources: Vec<_> = asked
        .iter()
        .map(|check| (check.verb.as_str(), &check.subject))
        .collect();
    assert!(
        matches!(resources[0], ("get", Subject::Resource(subject)) if subject.resource == "deployments" && subject.namespace == "a")
    );
    assert!(matches!(resources[1], ("x", Subject::Resource(subject)) if subject.group == "g"));
    assert_eq!(asked[2].service_account, Some(("a".to_owned(), "b".to_owned())));
    assert_eq!(asked[2].subject, Subject::Path("/healthz".to_owned()));
}

#[test]
fn what_is_unknown_cannot_be_compiled() {
    for (source, expected) in [
        ("node.x", "undeclared reference to 'node'"),
        ("object.all(x, y)", "undeclared reference to 'y'"),
        ("variables.absent", "undefined field 'absent'"),
        ("math.abs(1)", "undeclared reference to function 'abs'"),
        ("object.unheard()", "undeclared reference to function 'unheard'"),
        ("size()", "undeclared reference to function 'size'"),
        ("Pod{spec: 1}", "undeclared reference to 'Pod'"),
        ("JSONPatch{operation: 'add'}", "undefined field 'operation'"),
        (
            &vec!["1"; 2_000].join("+"),
            "is too complex: more than 1024 operators",
        ),
    ] {
        let error = Program::compile(source, &declarations()).unwrap_err();
        assert_eq!(error.to_string(), expected, "{source}");
    }
    let plain = Declarations {
        variables: &["object"],
        ..Declarations::default()
    };
    for source in [
        "Object{}",
        "jsonpatch.escapeKey('a')",
        "params.x",
        "authorizer.path('/')",
    ] {
        assert!(Program::compile(source, &plain).is_err(), "{source}");
    }
    assert!(matches!(
        Program::compile("object.", &plain),
        Err(CompileError::Syntax(_))
    ));
}

#[test]
fn budgets_end_evaluations() {
    let program = compile("object.spec.list.all(x, x > 0)");
    let (input, decisions) = (input(), Decisions::new());
    let mut scope = Scope::new(&input, &[], &decisions);
    let mut budget = 1_000;
    assert!(
        scope
            .evaluate(&program, &mut budget)
            .unwrap()
            .unwrap()
            .equals(&Value::Bool(true))
    );
    assert!((960..990).contains(&budget), "{budget}");
    assert_eq!(scope.evaluate(&program, &mut 5).unwrap_err(), Stop::OutOfBudget);
}

/// Each of these costs little in the units of Kubernetes and would take long or much memory.
#[test]
fn expressions_cannot_take_long() {
    for source in [
        "lists.range(200000).map(x, x).map(x, lists.range(200000))",
        "lists.range(100000).transformMap(i, v, i).all(k, v, lists.range(100000).size() > 0)",
        "lists.range(9223372036854775807)",
        "['x'].map(x, '%s%s%s%s%s%s%s%s'.format([x, x, x, x, x, x, x, x])).map(x, x.replace('', x)).map(x, x.replace('', x)).map(x, x.replace('', x)).map(x, x.replace('', x)).map(x, x.replace('', x)).size()",
        "'%.999999999f'.format([1.0])",
        "lists.range(5000).all(x, lists.range(5000).all(y, lists.range(5000).all(z, true)))",
        "lists.range(5000).all(x, sets.contains(lists.range(5000), lists.range(5000)))",
        "lists.range(1000).exists(x, 'x'.matches('(a{1,50}){1,50}' + string(x)))",
    ] {
        assert!(run(source).is_err(), "{source}");
    }
}

#[test]
fn expressions_at_the_limits_do_not_overflow_the_stack() {
    for source in [
        vec!["1"; 1_000].join("+"),
        format!("object{}", "[0]".repeat(1_000)),
        format!("object{}", ".a".repeat(1_000)),
        format!("{}true{}", "(".repeat(48), ")".repeat(48)),
        format!("{}1{}", "[".repeat(48), "]".repeat(48)),
        vec!["true"; 500].join("&&"),
        format!("{}true", "true ? true : ".repeat(240)),
        format!("{}true", "!".repeat(1_000)),
        format!("object{}", ".contains('a')".repeat(400)),
    ] {
        if let Ok(program) = Program::compile(&source, &declarations()) {
            drop(run(program.source()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_text_is_compiled_or_rejected(source in r#"(object|variables|Object|[a-z]{1,3}|[0-9]|[-+*/%?:&|=<>!.,()\[\]{}'" ]){0,40}"#) {
        fuzz_evaluate(source.as_bytes());
    }
}
