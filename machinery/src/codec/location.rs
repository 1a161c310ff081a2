//! The current path of a walk over a document, formatted only when an error needs it.

use std::fmt::{self, Display, Formatter, Write};

use crate::excerpt;

/// How much of a path messages print, in bytes.
const MAX_PATH_BYTES: usize = 1024;

/// One step into a document.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Segment<'a> {
    /// A field of a struct: its name, and the name of the struct.
    Field(&'a str, &'a str),
    /// A key of a map, or of an object without a schema.
    Key(&'a str),
    /// A position in a list.
    Index(usize),
}

/// The path from the root, as a linked list on the stack of the walk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Location<'a> {
    parent: Option<&'a Location<'a>>,
    segment: Segment<'a>,
}

impl<'a> Location<'a> {
    /// The location one step below `parent`.
    pub(crate) const fn below(parent: Option<&'a Location<'a>>, segment: Segment<'a>) -> Self {
        Self { parent, segment }
    }

    /// The path, cut to 1 KiB: clients choose the keys in it, and one may occur in many errors.
    pub(crate) fn excerpt(&self) -> String {
        excerpt::print(self, MAX_PATH_BYTES)
    }

    /// The innermost struct and the struct fields of the path, joined by dots, without map keys and list positions: the
    /// form in which Go's decoder names a field.
    pub(crate) fn struct_field(&self) -> Option<(String, String)> {
        let mut owner = None;
        let mut names = Vec::new();
        let mut here = Some(self);
        while let Some(location) = here {
            if let Segment::Field(name, of) = location.segment {
                owner = owner.or(Some(of));
                names.push(name);
            }
            here = location.parent;
        }
        names.reverse();
        owner.map(|owner| (owner.to_owned(), names.join(".")))
    }
}

impl Display for Location<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            write!(f, "{parent}")?;
        }
        match self.segment {
            Segment::Field(name, _) | Segment::Key(name) => {
                if self.parent.is_some() {
                    f.write_char('.')?;
                }
                f.write_str(name)
            }
            Segment::Index(index) => write!(f, "[{index}]"),
        }
    }
}
