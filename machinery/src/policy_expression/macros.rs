//! The environment of the parser: the macros of the standard, of optional values, of lists, and of loops with two variables.

use std::sync::{Arc, LazyLock};

use cel::common::ast::{CallExpr, ComprehensionExpr, Expr, ListExpr, LiteralValue, MapExpr, operators};
use cel::parser::Macro;
use cel::{DeclarationError, Env, IdedExpr, ParseError};

use super::eval::ACCUMULATOR;

type Helper<'a, 'b> = &'a mut cel::parser::MacroExprHelper<'b>;
type Expanded = Result<Option<IdedExpr>, ParseError>;

/// The environment; an error only if the library came to declare one of our macros itself.
pub(super) static ENVIRONMENT: LazyLock<Result<Arc<Env>, DeclarationError>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    for (name, count, parts) in MACROS {
        env.add_macro(Macro::receiver(*name, *count, |helper, target, arguments| {
            loop_of(helper, target, arguments, parts)
        }))?;
    }
    env.add_macro(Macro::receiver("sortBy", 2, sort_by))?;
    Ok(Arc::new(env))
});

/// A part of a loop that does not depend on the arguments.
type Part = fn(Helper<'_, '_>) -> IdedExpr;
/// The next accumulated value, made of the name of the first variable and of what follows the variables.
type Step = fn(Helper<'_, '_>, &str, Vec<IdedExpr>) -> IdedExpr;

/// What a macro expands to: a loop over its target.
struct Loop {
    init: Part,
    condition: Part,
    step: Step,
    result: Part,
}

/// Loops with two variables have the index and the item of a list, or the key and the value of a map.
const MACROS: &[(&str, usize, &Loop)] = &[
    ("all", 3, &ALL),
    ("exists", 3, &EXISTS),
    ("existsOne", 3, &EXISTS_ONE),
    ("exists_one", 3, &EXISTS_ONE),
    ("transformList", 3, &TRANSFORM_LIST),
    ("transformList", 4, &TRANSFORM_LIST),
    ("transformMap", 3, &TRANSFORM_MAP),
    ("transformMap", 4, &TRANSFORM_MAP),
    ("transformMapEntry", 3, &TRANSFORM_ENTRY),
    ("transformMapEntry", 4, &TRANSFORM_ENTRY),
];

const ALL: Loop = Loop {
    init: |helper| boolean(helper, true),
    condition: |helper| {
        let so_far = accumulator(helper);
        call(helper, operators::NOT_STRICTLY_FALSE, vec![so_far])
    },
    step: |helper, _, body| {
        let so_far = accumulator(helper);
        call(helper, operators::LOGICAL_AND, [vec![so_far], body].concat())
    },
    result: accumulator,
};

const EXISTS: Loop = Loop {
    init: |helper| boolean(helper, false),
    condition: |helper| {
        let so_far = accumulator(helper);
        let not = call(helper, operators::LOGICAL_NOT, vec![so_far]);
        call(helper, operators::NOT_STRICTLY_FALSE, vec![not])
    },
    step: |helper, _, body| {
        let so_far = accumulator(helper);
        call(helper, operators::LOGICAL_OR, [vec![so_far], body].concat())
    },
    result: accumulator,
};

const EXISTS_ONE: Loop = Loop {
    init: |helper| integer(helper, 0),
    condition: always,
    step: |helper, _, body| {
        let (count, one) = (accumulator(helper), integer(helper, 1));
        let more = call(helper, operators::ADD, vec![count, one]);
        let same = accumulator(helper);
        call(helper, operators::CONDITIONAL, [body, vec![more, same]].concat())
    },
    result: |helper| {
        let (count, one) = (accumulator(helper), integer(helper, 1));
        call(helper, operators::EQUALS, vec![count, one])
    },
};

const TRANSFORM_LIST: Loop = Loop {
    init: empty_list,
    condition: always,
    step: |helper, _, body| filtered(helper, body, append),
    result: accumulator,
};

const TRANSFORM_MAP: Loop = Loop {
    init: empty_map,
    condition: always,
    // The key of the result is the first variable.
    step: |helper, key, body| {
        filtered(helper, body, |helper, value| {
            let (accumulator, key) = (accumulator(helper), helper.next_expr(Expr::Ident(key.to_owned())));
            call(helper, MAP_INSERT, [vec![accumulator, key], value].concat())
        })
    },
    result: accumulator,
};

const TRANSFORM_ENTRY: Loop = Loop {
    init: empty_map,
    condition: always,
    step: |helper, _, body| {
        filtered(helper, body, |helper, entries| {
            let accumulator = accumulator(helper);
            call(helper, MAP_INSERT, [vec![accumulator], entries].concat())
        })
    },
    result: accumulator,
};

/// The keys of `sortBy`.
const KEYS: Loop = Loop {
    init: empty_list,
    condition: always,
    step: |helper, _, body| append(helper, body),
    result: accumulator,
};

/// The function that adds an entry, or the entries of a map, to a map.
const MAP_INSERT: &str = "cel.@mapInsert";

/// `list.sortBy(item, key)`: the list, sorted by the keys of a copy of it.
fn sort_by(helper: Helper<'_, '_>, target: &mut Option<IdedExpr>, arguments: &mut Vec<IdedExpr>) -> Expanded {
    let mut copied = target.clone();
    let list = target.take().map(Box::new);
    let keys = loop_of(helper, &mut copied, arguments, &KEYS)?;
    Ok(Some(helper.next_expr(Expr::Call(CallExpr {
        func_name: "@sortBy".to_owned(),
        target: list,
        args: keys.into_iter().collect(),
    }))))
}

/// A loop over the target. The arguments are one or two variables, and then what its step gets.
fn loop_of(
    helper: Helper<'_, '_>,
    target: &mut Option<IdedExpr>,
    arguments: &mut Vec<IdedExpr>,
    parts: &Loop,
) -> Expanded {
    let variables = if arguments.len() > 2 { 2 } else { 1 };
    let mut arguments = std::mem::take(arguments).into_iter();
    let mut names = Vec::new();
    for variable in arguments.by_ref().take(variables) {
        match variable.expr {
            Expr::Ident(name) if !names.contains(&name) => names.push(name),
            Expr::Ident(name) => {
                return Err(helper.new_error(variable.id, format!("duplicate variable name: {name}")));
            }
            _ => return Err(helper.new_error(variable.id, "argument must be a simple name")),
        }
    }
    let mut names = names.into_iter();
    let first = names.next().unwrap_or_default();
    let comprehension = ComprehensionExpr {
        iter_range: target.take().unwrap_or_default(),
        iter_var2: names.next(),
        accu_var: ACCUMULATOR.to_owned(),
        accu_init: (parts.init)(helper),
        loop_cond: (parts.condition)(helper),
        loop_step: (parts.step)(helper, &first, arguments.collect()),
        result: (parts.result)(helper),
        iter_var: first,
    };
    Ok(Some(
        helper.next_expr(Expr::Comprehension(Box::new(comprehension))),
    ))
}

/// The step for a body of `filter, value` or only `value`.
fn filtered(
    helper: Helper<'_, '_>,
    mut body: Vec<IdedExpr>,
    step: impl FnOnce(Helper<'_, '_>, Vec<IdedExpr>) -> IdedExpr,
) -> IdedExpr {
    let value: Vec<IdedExpr> = body.pop().into_iter().collect();
    let filter = body.pop();
    let step = step(helper, value);
    match filter {
        None => step,
        Some(filter) => {
            let same = accumulator(helper);
            call(helper, operators::CONDITIONAL, vec![filter, step, same])
        }
    }
}

fn append(helper: Helper<'_, '_>, item: Vec<IdedExpr>) -> IdedExpr {
    let accumulator = accumulator(helper);
    let item = helper.next_expr(Expr::List(ListExpr::new(item)));
    call(helper, operators::ADD, vec![accumulator, item])
}

fn accumulator(helper: Helper<'_, '_>) -> IdedExpr {
    helper.next_expr(Expr::Ident(ACCUMULATOR.to_owned()))
}

fn always(helper: Helper<'_, '_>) -> IdedExpr {
    boolean(helper, true)
}

fn empty_list(helper: Helper<'_, '_>) -> IdedExpr {
    helper.next_expr(Expr::List(ListExpr::default()))
}

fn empty_map(helper: Helper<'_, '_>) -> IdedExpr {
    helper.next_expr(Expr::Map(MapExpr::default()))
}

fn boolean(helper: Helper<'_, '_>, value: bool) -> IdedExpr {
    helper.next_expr(Expr::Literal(LiteralValue::Boolean(value.into())))
}

fn integer(helper: Helper<'_, '_>, value: i64) -> IdedExpr {
    helper.next_expr(Expr::Literal(LiteralValue::Int(value.into())))
}

fn call(helper: Helper<'_, '_>, function: &str, args: Vec<IdedExpr>) -> IdedExpr {
    helper.next_expr(Expr::Call(CallExpr {
        func_name: function.to_owned(),
        target: None,
        args,
    }))
}
