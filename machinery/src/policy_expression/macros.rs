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
    for (name, count, expand) in MACROS {
        let expand = *expand;
        env.add_macro(Macro::receiver(*name, *count, expand))?;
    }
    Ok(Arc::new(env))
});

type Expand = fn(Helper<'_, '_>, &mut Option<IdedExpr>, &mut Vec<IdedExpr>) -> Expanded;

/// Loops with two variables have the index and the item of a list, or the key and the value of a map.
const MACROS: &[(&str, usize, Expand)] = &[
    ("all", 3, all),
    ("exists", 3, exists),
    ("existsOne", 3, exists_one),
    ("exists_one", 3, exists_one),
    ("transformList", 3, transform_list),
    ("transformList", 4, transform_list),
    ("transformMap", 3, transform_map),
    ("transformMap", 4, transform_map),
    ("transformMapEntry", 3, transform_entry),
    ("transformMapEntry", 4, transform_entry),
    ("sortBy", 2, sort_by),
];

fn all(helper: Helper<'_, '_>, target: &mut Option<IdedExpr>, arguments: &mut Vec<IdedExpr>) -> Expanded {
    let init = boolean(helper, true);
    let so_far = accumulator(helper);
    let condition = call(helper, operators::NOT_STRICTLY_FALSE, vec![so_far]);
    let parts = Parts {
        init,
        condition,
        result: None,
    };
    loop_of(helper, target, arguments, parts, |helper, body| {
        let so_far = accumulator(helper);
        call(helper, operators::LOGICAL_AND, [vec![so_far], body].concat())
    })
}

fn exists(helper: Helper<'_, '_>, target: &mut Option<IdedExpr>, arguments: &mut Vec<IdedExpr>) -> Expanded {
    let init = boolean(helper, false);
    let so_far = accumulator(helper);
    let not = call(helper, operators::LOGICAL_NOT, vec![so_far]);
    let condition = call(helper, operators::NOT_STRICTLY_FALSE, vec![not]);
    let parts = Parts {
        init,
        condition,
        result: None,
    };
    loop_of(helper, target, arguments, parts, |helper, body| {
        let so_far = accumulator(helper);
        call(helper, operators::LOGICAL_OR, [vec![so_far], body].concat())
    })
}

/// `list.sortBy(item, key)`: the list, sorted by the keys of a copy of it.
fn sort_by(helper: Helper<'_, '_>, target: &mut Option<IdedExpr>, arguments: &mut Vec<IdedExpr>) -> Expanded {
    let mut copied = target.clone();
    let list = target.take().map(Box::new);
    let init = helper.next_expr(Expr::List(ListExpr::default()));
    let condition = boolean(helper, true);
    let parts = Parts {
        init,
        condition,
        result: None,
    };
    let keys = loop_of(helper, &mut copied, arguments, parts, append)?;
    Ok(Some(helper.next_expr(Expr::Call(CallExpr {
        func_name: "@sortBy".to_owned(),
        target: list,
        args: keys.into_iter().collect(),
    }))))
}

fn exists_one(
    helper: Helper<'_, '_>,
    target: &mut Option<IdedExpr>,
    arguments: &mut Vec<IdedExpr>,
) -> Expanded {
    let init = integer(helper, 0);
    let condition = boolean(helper, true);
    let (count, one) = (accumulator(helper), integer(helper, 1));
    let result = Some(call(helper, operators::EQUALS, vec![count, one]));
    loop_of(
        helper,
        target,
        arguments,
        Parts {
            init,
            condition,
            result,
        },
        |helper, body| {
            let (count, one) = (accumulator(helper), integer(helper, 1));
            let more = call(helper, operators::ADD, vec![count, one]);
            let same = accumulator(helper);
            call(helper, operators::CONDITIONAL, [body, vec![more, same]].concat())
        },
    )
}

fn transform_list(
    helper: Helper<'_, '_>,
    target: &mut Option<IdedExpr>,
    arguments: &mut Vec<IdedExpr>,
) -> Expanded {
    let init = helper.next_expr(Expr::List(ListExpr::default()));
    let condition = boolean(helper, true);
    loop_of(
        helper,
        target,
        arguments,
        Parts {
            init,
            condition,
            result: None,
        },
        |helper, body| filtered(helper, body, append),
    )
}

fn transform_map(
    helper: Helper<'_, '_>,
    target: &mut Option<IdedExpr>,
    arguments: &mut Vec<IdedExpr>,
) -> Expanded {
    let init = helper.next_expr(Expr::Map(MapExpr::default()));
    let condition = boolean(helper, true);
    // The key of the result is the first variable.
    let key = arguments.first().cloned();
    loop_of(
        helper,
        target,
        arguments,
        Parts {
            init,
            condition,
            result: None,
        },
        move |helper, body| {
            filtered(helper, body, |helper, value| {
                let accumulator = accumulator(helper);
                let arguments = [vec![accumulator], key.into_iter().collect(), value].concat();
                call(helper, "cel.@mapInsert", arguments)
            })
        },
    )
}

fn transform_entry(
    helper: Helper<'_, '_>,
    target: &mut Option<IdedExpr>,
    arguments: &mut Vec<IdedExpr>,
) -> Expanded {
    let init = helper.next_expr(Expr::Map(MapExpr::default()));
    let condition = boolean(helper, true);
    loop_of(
        helper,
        target,
        arguments,
        Parts {
            init,
            condition,
            result: None,
        },
        |helper, body| {
            filtered(helper, body, |helper, entries| {
                let accumulator = accumulator(helper);
                call(helper, "cel.@mapInsert", [vec![accumulator], entries].concat())
            })
        },
    )
}

/// The parts of a loop that do not depend on the arguments.
struct Parts {
    init: IdedExpr,
    condition: IdedExpr,
    /// The accumulated value if absent.
    result: Option<IdedExpr>,
}

/// A loop over the target. The arguments are one or two variables, and then what `step` gets.
fn loop_of(
    helper: Helper<'_, '_>,
    target: &mut Option<IdedExpr>,
    arguments: &mut Vec<IdedExpr>,
    parts: Parts,
    step: impl FnOnce(Helper<'_, '_>, Vec<IdedExpr>) -> IdedExpr,
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
    let loop_step = step(helper, arguments.collect());
    let result = match parts.result {
        Some(result) => result,
        None => accumulator(helper),
    };
    let mut names = names.into_iter();
    let comprehension = ComprehensionExpr {
        iter_range: target.take().unwrap_or_default(),
        iter_var: names.next().unwrap_or_default(),
        iter_var2: names.next(),
        accu_var: ACCUMULATOR.to_owned(),
        accu_init: parts.init,
        loop_cond: parts.condition,
        loop_step,
        result,
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
