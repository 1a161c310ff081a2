use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::field_error::tests::assert_causes;

fn matches(selector: &Selector, labels: &BTreeMap<&str, &str>) -> bool {
    selector.matches(|key| labels.get(key).copied())
}

fn selects(text: &str, labels: &[(&str, &str)], expected: bool) {
    let labels = labels.iter().copied().collect();
    assert_eq!(
        matches(&Selector::parse(text).unwrap(), &labels),
        expected,
        "{text} on {labels:?}"
    );
}

#[test]
fn requirements_match_by_operator() {
    let web: &[_] = &[("app", "web"), ("n", "7")];
    for text in [
        "",
        "app",
        "app=web",
        "app==web",
        "app in (db,web)",
        "app != db",
        "tier!=db",
        "tier notin (db)",
        "!tier",
        "n>6",
        "n<8",
        "app=web,n",
        " app = web , n ",
        "app\tin\n( web )",
    ] {
        selects(text, web, true);
    }
    for text in [
        "tier",
        "app=db",
        "app=",
        "app in ()",
        "app notin (web)",
        "!app",
        "n>7",
        "n<7",
        "app>6",
        "tier>1",
        "app=web,tier",
    ] {
        selects(text, web, false);
    }
    selects("app=", &[("app", "")], true);
    selects("app in (,a)", &[("app", "")], true);
    selects("app in (a,)", &[("app", "")], true);
    selects("app in (a,,b)", &[("app", "")], true);
    selects("in in (in,notin)", &[("in", "notin")], true);
    selects("n<9223372036854775807", &[("n", "0")], true);
}

#[test]
fn selectors_are_printed_in_canonical_form() {
    for (text, expected) in [
        ("", ""),
        ("b=1,a!=2", "a!=2,b=1"),
        ("x in (b,a,b)", "x in (a,b)"),
        ("x in ()", "x in ()"),
        ("x notin (,a)", "x notin (,a)"),
        ("!x, y", "!x,y"),
        ("x==1,y>2,z<3", "x==1,y>2,z<3"),
        ("a=,b", "a=,b"),
    ] {
        assert_eq!(Selector::parse(text).unwrap().to_string(), expected);
    }
}

#[test]
fn errors_have_the_text_of_kubernetes() {
    let key = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    let value = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
    for (text, expected) in [
        ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt".to_owned()),
        ("a=b=c", "found '=', expected: ',' or 'end of string'".to_owned()),
        ("a=b c", "found 'c', expected: ',' or 'end of string'".to_owned()),
        ("=a", "found '=', expected: !, identifier, or 'end of string'".to_owned()),
        (",a", "found ',', expected: !, identifier, or 'end of string'".to_owned()),
        ("a,", "found '', expected: identifier after ','".to_owned()),
        ("a,,b", "found ',', expected: identifier after ','".to_owned()),
        ("!", "unable to parse requirement: found '', expected: identifier".to_owned()),
        ("a==!", "unable to parse requirement: found '!', expected: identifier".to_owned()),
        ("!a=b", "found '=', expected: ',' or 'end of string'".to_owned()),
        ("a in b", "unable to parse requirement: found 'b' expected: '('".to_owned()),
        ("a in (", "unable to parse requirement: found '', expected: ',', ')' or identifier".to_owned()),
        ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'".to_owned()),
        ("a in (b,", "unable to parse requirement: found '', expected: ',', or identifier".to_owned()),
        ("a in (b,=)", "unable to parse requirement: found '=', expected: ',', or identifier".to_owned()),
        ("-a", format!("unable to parse requirement: <nil>: Invalid value: \"-a\": {key}")),
        ("a=-b", format!("unable to parse requirement: values[0][a]: Invalid value: \"-b\": {value}")),
        (
            "a>b",
            "unable to parse requirement: values[0]: Invalid value: \"b\": for 'Gt', 'Lt' operators, the value must be an integer".to_owned(),
        ),
    ] {
        assert_eq!(Selector::parse(text).unwrap_err().to_string(), expected, "{text}");
    }
}

fn expression(key: &str, operator: &str, values: &[&str]) -> LabelSelectorRequirement {
    LabelSelectorRequirement {
        key: key.to_owned(),
        operator: operator.to_owned(),
        values: (!values.is_empty()).then(|| values.iter().map(|&value| value.to_owned()).collect()),
    }
}

#[test]
fn label_selectors_of_objects_are_converted() {
    let selector = LabelSelector {
        match_labels: Some(BTreeMap::from([("app".to_owned(), "web".to_owned())])),
        match_expressions: Some(vec![
            expression("tier", "In", &["a", "b"]),
            expression("old", "DoesNotExist", &[]),
            expression("env", "NotIn", &["test"]),
            expression("zone", "Exists", &[]),
        ]),
    };
    let selector = Selector::try_from(&selector).unwrap();
    assert_eq!(
        selector.to_string(),
        "app=web,env notin (test),!old,tier in (a,b),zone"
    );
    assert!(
        Selector::try_from(&LabelSelector::default())
            .unwrap()
            .is_everything()
    );
}

#[test]
fn every_error_in_a_label_selector_has_its_path() {
    let selector = LabelSelector {
        match_labels: Some(BTreeMap::from([("a b".to_owned(), "c d".to_owned())])),
        match_expressions: Some(vec![
            expression("a", "In", &[]),
            expression("b", "Exists", &["x"]),
            expression("c", "Gt", &["1"]),
            expression("", "NotIn", &["-"]),
        ]),
    };
    let errors = validate_label_selector(&selector, &FieldPath::new("podSelector"));
    let word = "consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
    let key = format!("name part must {word}");
    let value = format!("a valid label must be an empty string or {word}");
    assert_causes(
        &errors,
        &[
            (
                "podSelector.matchLabels",
                "Invalid",
                &format!("Invalid value: \"a b\": {key}"),
            ),
            (
                "podSelector.matchLabels",
                "Invalid",
                &format!("Invalid value: \"c d\": {value}"),
            ),
            (
                "podSelector.matchExpressions[0].values",
                "Required",
                "Required value: must be specified when `operator` is 'In' or 'NotIn'",
            ),
            (
                "podSelector.matchExpressions[1].values",
                "Forbidden",
                "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ),
            (
                "podSelector.matchExpressions[2].operator",
                "Invalid",
                "Invalid value: \"Gt\": not a valid selector operator",
            ),
            (
                "podSelector.matchExpressions[3].key",
                "Invalid",
                "Invalid value: \"\": name part must be non-empty",
            ),
            (
                "podSelector.matchExpressions[3].key",
                "Invalid",
                &format!("Invalid value: \"\": {key}"),
            ),
            (
                "podSelector.matchExpressions[3].values[0]",
                "Invalid",
                &format!("Invalid value: \"-\": {value}"),
            ),
        ],
        &"podSelector",
    );
    assert_eq!(Selector::try_from(&selector).unwrap_err().len(), errors.len());
}

/// The semantics of a requirement, expressed with sets.
fn model(operator: &str, key: &str, values: &[&str], labels: &BTreeMap<&str, &str>) -> bool {
    let values: BTreeSet<&str> = values.iter().copied().collect();
    let has: BTreeSet<&str> = labels.get(key).copied().into_iter().collect();
    match operator {
        "in" => !has.is_disjoint(&values),
        "notin" => has.is_disjoint(&values),
        "=" | "==" => has == values,
        "!=" => has != values,
        "" => !has.is_empty(),
        "!" => has.is_empty(),
        ">" | "<" => {
            let numbers = |set: &BTreeSet<&str>| set.iter().find_map(|text| text.parse::<i64>().ok());
            match (numbers(&has), numbers(&values)) {
                (Some(has), Some(value)) => {
                    if operator == ">" {
                        has > value
                    } else {
                        has < value
                    }
                }
                _ => false,
            }
        }
        other => unreachable!("{other}"),
    }
}

fn text(operator: &str, key: &str, values: &[&str]) -> String {
    match operator {
        "" | "!" => format!("{operator}{key}"),
        "in" | "notin" => format!("{key} {operator} ({})", values.join(",")),
        _ => format!("{key}{operator}{}", values[0]),
    }
}

fn a_word() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "1", "2", "10"])
}

fn a_requirement() -> impl Strategy<Value = (&'static str, &'static str, Vec<&'static str>)> {
    let operator = prop::sample::select(vec!["in", "notin", "=", "==", "!=", "", "!", ">", "<"]);
    let number = prop::sample::select(vec!["1", "2", "10"]);
    (operator, a_word(), prop::collection::vec(a_word(), 1..4), number).prop_map(
        |(operator, key, mut values, number)| {
            if matches!(operator, ">" | "<") {
                values = vec![number];
            } else if !matches!(operator, "in" | "notin") {
                values.truncate(1);
            }
            (operator, key, values)
        },
    )
}

proptest! {
    #[test]
    fn selectors_agree_with_sets(
        requirements in prop::collection::vec(a_requirement(), 0..4),
        labels in prop::collection::btree_map(a_word(), a_word(), 0..4),
    ) {
        let texts: Vec<String> = requirements.iter().map(|(operator, key, values)| text(operator, key, values)).collect();
        let selector = Selector::parse(&texts.join(",")).unwrap();
        let expected = requirements.iter().all(|(operator, key, values)| model(operator, key, values, &labels));
        prop_assert_eq!(matches(&selector, &labels), expected);
        let again = Selector::parse(&selector.to_string()).unwrap();
        prop_assert_eq!(again.to_string(), selector.to_string());
        prop_assert_eq!(matches(&again, &labels), expected);
    }

    #[test]
    fn any_text_is_parsed_or_rejected(text in "[ab,=!()<> \\PC\0]{0,24}") {
        if let Ok(selector) = Selector::parse(&text) {
            prop_assert_eq!(&Selector::parse(&selector.to_string()).unwrap(), &selector);
        }
    }
}
