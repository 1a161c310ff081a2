//! Where in a document is the walk right now? A path that costs nothing until an error needs it.

use std::fmt::{self, Display, Formatter, Write};

/// One step into a document.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Segment<'a> {
    /// A field of a struct: its name, and the name of the struct.
    Field(&'a str, &'a str),
    /// A key of a map, or of an object whose schema is not known.
    Key(&'a str),
    /// A position in a list.
    Index(usize),
}

/// The way from the root, linked through the stack of the walk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Location<'a> {
    parent: Option<&'a Location<'a>>,
    segment: Segment<'a>,
}

impl<'a> Location<'a> {
    /// The place one step below `parent`.
    pub(crate) const fn below(parent: Option<&'a Location<'a>>, segment: Segment<'a>) -> Self {
        Self { parent, segment }
    }

    /// The struct fields on the way, joined by dots, and the innermost struct: as the reference decoder names a
    /// field, without keys and positions.
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
