//! Reads which module imports which from the sources of a crate.
//!
//! A [`Crate`] holds the code of every file outside tests. A path that starts with `crate::`, `super::` or `self::` is an
//! import, wherever it stands; groups (`crate::{a, b::c}`) are expanded, and a name that a parent module re-exports counts
//! as an import of the file that declares it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A module path below the crate's root: `["http", "body"]`.
pub(crate) type Module = Vec<String>;
/// From each file's module to the modules it imports.
pub(crate) type Arrows = BTreeMap<Module, BTreeSet<Module>>;

/// The files of a crate, by module, without comments, the contents of literals, and tests.
pub(crate) struct Crate(BTreeMap<Module, String>);

impl Crate {
    /// Reads the files below `src`.
    pub(crate) fn read(src: &Path) -> Self {
        let mut files = Vec::new();
        rust_files(src, &mut files);
        let mut all = BTreeMap::new();
        let mut tests = BTreeSet::new();
        for file in files {
            let module = module_of(file.strip_prefix(src).expect("a file below the folder"));
            let source = fs::read_to_string(&file).expect("a source can be read");
            let (code, test_modules) = without_tests(&blank_comments_and_literals(&source));
            tests.extend(test_modules.into_iter().map(|name| child(&module, &name)));
            all.insert(module, code);
        }
        all.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
        Self(all)
    }

    /// Every import between files.
    pub(crate) fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (module, code) in &self.0 {
            let imports = arrows.entry(module.clone()).or_default();
            for path in paths(&without_re_exports(code)) {
                let target = self.declared_in(&absolute(module, &path));
                if target != *module {
                    imports.insert(target);
                }
            }
        }
        arrows
    }

    /// The file that declares what an absolute path names.
    fn declared_in(&self, path: &[String]) -> Module {
        let depth = (0..=path.len())
            .rev()
            .find(|depth| self.0.contains_key(&path[..*depth]))
            .unwrap_or_default();
        let module = path[..depth].to_vec();
        let (Some(name), Some(code)) = (path.get(depth), self.0.get(&module)) else {
            return module;
        };
        let re_exported = re_exports(code)
            .into_iter()
            .find(|export| export.last() == Some(name) && export.len() > 1);
        match re_exported.map(|export| absolute(&module, &export)) {
            Some(origin) if origin != path && origin.len() > depth + 1 => self.declared_in(&origin),
            _ => module,
        }
    }
}

/// The arrows between the modules directly below `folder`, or between the crate's top-level modules.
pub(crate) fn between_children(arrows: &Arrows, folder: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let child_of = |module: &Module| {
        let below = module.len() > folder.len() && module.iter().zip(folder).all(|(own, of)| own == of);
        below.then(|| module[folder.len()].clone())
    };
    let mut found = BTreeMap::<String, BTreeSet<String>>::new();
    for (module, imports) in arrows {
        let Some(from) = child_of(module) else { continue };
        let to = found.entry(from.clone()).or_default();
        to.extend(imports.iter().filter_map(child_of).filter(|to| *to != from));
    }
    found
}

/// The arrows between the files at or below `folder`.
pub(crate) fn between_files(arrows: &Arrows, folder: &[&str]) -> Arrows {
    let is_below =
        |module: &Module| module.len() >= folder.len() && module.iter().zip(folder).all(|(a, b)| a == b);
    arrows
        .iter()
        .filter(|(module, _)| is_below(module))
        .map(|(module, imports)| {
            (
                module.clone(),
                imports.iter().filter(|to| is_below(to)).cloned().collect(),
            )
        })
        .collect()
}

/// The arrows that are part of a circle, or lead from one circle to another.
pub(crate) fn circles<T: Ord + Clone>(arrows: &BTreeMap<T, BTreeSet<T>>) -> Vec<(T, T)> {
    let mut left: Vec<(T, T)> = arrows
        .iter()
        .flat_map(|(from, imports)| imports.iter().map(|to| (from.clone(), to.clone())))
        .collect();
    loop {
        let sources: BTreeSet<T> = left.iter().map(|(from, _)| from.clone()).collect();
        let targets: BTreeSet<T> = left.iter().map(|(_, to)| to.clone()).collect();
        let before = left.len();
        left.retain(|(from, to)| targets.contains(from) && sources.contains(to));
        if left.len() == before {
            return left;
        }
    }
}

/// Every `.rs` file below a folder.
pub(crate) fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the workspace can be read") {
        let path = entry.expect("an entry can be read").path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn module_of(file: &Path) -> Module {
    let mut module: Module = file
        .with_extension("")
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    if module.last().is_some_and(|last| last == "mod" || last == "lib") {
        module.pop();
    }
    module
}

fn child(module: &[String], name: &str) -> Module {
    let mut child = module.to_vec();
    child.push(name.to_owned());
    child
}

/// The path below the crate's root that a path in `module` names.
fn absolute(module: &[String], path: &[String]) -> Module {
    let mut absolute = module.to_vec();
    let mut rest = path;
    while let Some((first, after)) = rest.split_first() {
        match first.as_str() {
            "crate" => absolute.clear(),
            "super" => drop(absolute.pop()),
            "self" => {}
            _ => break,
        }
        rest = after;
    }
    absolute.extend(rest.iter().cloned());
    absolute
}

/// The source with spaces in place of comments and of the contents of literals.
fn blank_comments_and_literals(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if first == '"' {
            string_end(rest)
        } else if rest.starts_with("r\"") || rest.starts_with("r#") {
            raw_string_end(rest).unwrap_or_default()
        } else if first == '\'' {
            character_end(rest).unwrap_or_default()
        } else {
            0
        };
        let (taken, after) = rest.split_at(skipped.max(first.len_utf8()));
        if skipped == 0 {
            code.push_str(taken);
        } else {
            code.extend(taken.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        }
        rest = after;
    }
    code
}

fn string_end(text: &str) -> usize {
    let mut escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The end of `r"…"` or `r#"…"#`; none for a raw identifier.
fn raw_string_end(text: &str) -> Option<usize> {
    let hashes = text.bytes().skip(1).take_while(|byte| *byte == b'#').count();
    let start = 1 + hashes;
    text.get(start..)?.strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let length = text.get(start + 1..)?.find(&end)?;
    Some(start + 1 + length + end.len())
}

/// The end of a character literal; none for a lifetime.
fn character_end(text: &str) -> Option<usize> {
    let inner = text.get(1..)?;
    let length = if inner.starts_with('\\') {
        1 + inner.get(1..)?.chars().next()?.len_utf8()
    } else {
        inner.chars().next()?.len_utf8()
    };
    let rest = inner.get(length..)?;
    let close = if inner.starts_with("\\u") || inner.starts_with("\\x") {
        rest.find('\'')?
    } else {
        0
    };
    rest.get(close..)?
        .starts_with('\'')
        .then_some(1 + length + close + 1)
}

/// The code without items under `#[cfg(test)]`, and the names of the modules among them that are files.
fn without_tests(code: &str) -> (String, Vec<String>) {
    const ATTRIBUTE: &str = "#[cfg(test)]";
    let (mut kept, mut modules) = (String::new(), Vec::new());
    let mut rest = code;
    while let Some(at) = rest.find(ATTRIBUTE) {
        let (before, from) = rest.split_at(at);
        kept.push_str(before);
        let end = item_end(from);
        let (item, after) = from.split_at(end);
        if let Some((_, name)) = item.split_once("mod ")
            && let Some(name) = name.strip_suffix(';')
        {
            modules.push(name.trim().to_owned());
        }
        rest = after;
    }
    kept.push_str(rest);
    (kept, modules)
}

/// Where an item ends: at a `;` outside braces, or at the brace that closes its body. A `use` ends at its `;`.
fn item_end(item: &str) -> usize {
    let is_use = item.contains(" use ") && item.find(" use ") < item.find('{');
    let mut depth = 0_usize;
    for (at, byte) in item.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 && !is_use {
                    return at + 1;
                }
            }
            b';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    item.len()
}

/// The `pub use` statements, as (start, end) in the code.
fn re_export_ranges(code: &str) -> Vec<(usize, usize)> {
    code.match_indices("use ")
        .filter(|(at, _)| {
            let line = code[..*at].rsplit('\n').next().unwrap_or_default().trim();
            line == "pub" || line.starts_with("pub(")
        })
        .filter_map(|(at, _)| Some((at, at + code[at..].find(';')?)))
        .collect()
}

fn re_exports(code: &str) -> Vec<Module> {
    re_export_ranges(code)
        .into_iter()
        .flat_map(|(start, end)| {
            let words: Vec<&str> = code[start + "use ".len()..end].split_whitespace().collect();
            let tree = words.join(" ");
            let mut found = Vec::new();
            expand(&tree, &mut Vec::new(), &mut found);
            found
        })
        .collect()
}

fn without_re_exports(code: &str) -> String {
    let mut kept = code.to_owned();
    for (start, end) in re_export_ranges(code).into_iter().rev() {
        kept.replace_range(start..end, "");
    }
    kept
}

/// Every path that starts at the crate's root, at the module itself or at its parent.
fn paths(code: &str) -> Vec<Module> {
    let mut found = Vec::new();
    for root in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || "_:".contains(c)) {
                continue;
            }
            expand(tree_at(&code[at..]), &mut Vec::new(), &mut found);
        }
    }
    found
}

/// The path or tree of paths at the start of the code: up to what cannot be part of one.
fn tree_at(code: &str) -> &str {
    let mut depth = 0_usize;
    for (at, character) in code.char_indices() {
        match character {
            '{' if code[..at].ends_with("::") => depth += 1,
            '}' if depth > 0 => {
                depth -= 1;
                if depth == 0 {
                    return &code[..=at];
                }
            }
            c if depth > 0 || c.is_alphanumeric() || "_:".contains(c) => {
                if depth > 0 && c == '{' {
                    depth += 1;
                }
            }
            _ => return &code[..at],
        }
    }
    code
}

/// Expands `a::{b, c::d}` into the paths in it.
fn expand(tree: &str, prefix: &mut Module, found: &mut Vec<Module>) {
    let tree = tree.trim();
    let depth = prefix.len();
    match tree.find('{') {
        Some(open) => {
            let (path, group) = tree.split_at(open);
            push_segments(path, prefix);
            let inside = &group[1..group.rfind('}').unwrap_or(group.len())];
            let (mut start, mut level) = (0, 0_usize);
            for (at, character) in inside.char_indices() {
                match character {
                    '{' => level += 1,
                    '}' => level = level.saturating_sub(1),
                    ',' if level == 0 => {
                        expand(&inside[start..at], prefix, found);
                        start = at + 1;
                    }
                    _ => {}
                }
            }
            expand(&inside[start..], prefix, found);
        }
        None if tree.is_empty() => {}
        None => {
            let path = tree.split(" as ").next().unwrap_or_default();
            push_segments(path, prefix);
            if prefix.len() > 1 && prefix.last().is_some_and(|last| last == "self") {
                prefix.pop();
            }
            found.push(prefix.clone());
        }
    }
    prefix.truncate(depth);
}

fn push_segments(path: &str, prefix: &mut Module) {
    prefix.extend(
        path.split("::")
            .map(str::trim)
            .filter(|segment| !segment.is_empty() && *segment != "*")
            .map(str::to_owned),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_of(files: &[(&str, &str)]) -> Arrows {
        let folder =
            std::env::temp_dir().join(format!("architecture-{}-{}", std::process::id(), files.len()));
        for (name, source) in files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().expect("a file in a folder")).expect("a folder can be made");
            fs::write(path, source).expect("a file can be written");
        }
        let arrows = Crate::read(&folder).arrows();
        fs::remove_dir_all(&folder).expect("the folder can be removed");
        arrows
    }

    #[test]
    fn imports_are_found_in_groups_expressions_and_parents() {
        let arrows = crate_of(&[
            ("lib.rs", "pub mod a;\n#[cfg(test)]\nmod fixtures;"),
            (
                "a/mod.rs",
                "mod b;\nmod c;\npub use self::{b::B, c::C as See};\nstruct Own;",
            ),
            ("a/b.rs", "use super::Own;\nfn x() { crate::d::y(super::c::z); }"),
            (
                "a/c.rs",
                "// crate::no\nuse crate::{d::{self, Y}, e as f, };\nconst T: &str = \"crate::no { \";\n#[cfg(test)]\nmod tests { use crate::no; }",
            ),
            (
                "d.rs",
                "/* crate::no */ use crate::a::B; fn f<'a>(c: char) { c == '{'; }",
            ),
            ("e.rs", ""),
            ("fixtures.rs", "use crate::a;"),
            ("no.rs", ""),
        ]);
        let printed: Vec<String> = arrows
            .iter()
            .flat_map(|(from, imports)| {
                imports
                    .iter()
                    .map(move |to| format!("{} {}", from.join("/"), to.join("/")))
            })
            .collect();
        assert_eq!(printed, ["a/b a", "a/b a/c", "a/b d", "a/c d", "a/c e", "d a/b"]);
        let children = between_children(&arrows, &[]);
        assert_eq!(children["a"], ["d", "e"].map(str::to_owned).into());
        assert_eq!(children["d"], ["a".to_owned()].into());
        let circle: Vec<_> = circles(&children);
        assert_eq!(
            circle,
            [("a", "d"), ("d", "a")].map(|(a, b)| (a.to_owned(), b.to_owned()))
        );
        assert!(circles(&between_files(&arrows, &["a"])).is_empty());
    }

    #[test]
    fn literals_and_lifetimes_are_told_apart() {
        let source = r##"a("x\"{", 'b', '\'', '\u{7d}', r#"{"}"#, &'a str)"##;
        let code = blank_comments_and_literals(source);
        assert_eq!(code.matches(['{', '}', '"']).count(), 0, "{code}");
        assert!(code.ends_with("&'a str)"), "{code}");
    }
}
