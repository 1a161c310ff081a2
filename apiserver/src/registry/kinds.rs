//! The kinds of Drydock with their rules: one [`Registration`] for each kind of [`drydock_proto::for_each_kind`].
//!
//! `docs/adding-a-kind.md` shows what a new kind adds.

use std::sync::Arc;

use drydock_machinery::names::AllowedNames;
use drydock_machinery::schema::{SchemaError, Structural};
use drydock_proto::kinds::{Face as KindFace, GROUP, Kind};
use serde_json::Value;

use super::face::{Face, Table};
use super::resource::{Capabilities, Resource};
use super::strategy::Strategy;

/// Makes the rules of a kind. Names of requesters and interceptors are checked against the allowed ones.
pub type MakeStrategy = fn(names: &Arc<AllowedNames>) -> Box<dyn Strategy>;

/// Valid objects of a kind, for tests that run over every kind. The objects of two different numbers differ in name.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// `metadata.name` of the object with a number from 0 to 99.
    pub name: fn(usize) -> String,
    /// Its `spec`, as the hub has it.
    pub spec: fn(usize) -> Value,
    /// A change of the spec that is allowed: a merge patch of `spec`.
    pub change: fn() -> Value,
}

/// What a kind brings to the server.
#[derive(Debug)]
pub struct Registration {
    kind: Kind,
    strategy: MakeStrategy,
    tables: &'static [Table],
    capabilities: Capabilities,
    sample: Sample,
}

/// A schema that the API machinery cannot read: a bug in this program.
#[derive(Debug, thiserror::Error)]
#[error("the schema of {kind} in {version} is unusable")]
pub struct UnusableSchema {
    kind: &'static str,
    version: &'static str,
    #[source]
    source: SchemaError,
}

impl Registration {
    /// A kind with its rules, and a table for each of its faces in their order.
    ///
    /// # Panics
    /// If the numbers of tables and faces differ. Registrations are made at compile time, so such a kind does not
    /// compile.
    #[must_use]
    pub const fn new(
        kind: Kind,
        strategy: MakeStrategy,
        tables: &'static [Table],
        capabilities: Capabilities,
        sample: Sample,
    ) -> Self {
        assert!(
            !tables.is_empty() && tables.len() == kind.faces.len(),
            "a kind has one table for each of its faces"
        );
        Self {
            kind,
            strategy,
            tables,
            capabilities,
            sample,
        }
    }

    /// Names, scope and faces.
    #[must_use]
    pub const fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Valid objects.
    #[must_use]
    pub const fn sample(&self) -> &Sample {
        &self.sample
    }

    /// The resource that serves the kind.
    ///
    /// # Errors
    /// A schema that cannot be read.
    pub fn resource(&self, names: &Arc<AllowedNames>) -> Result<Resource, UnusableSchema> {
        let kind = &self.kind;
        let faces = kind.faces.iter().zip(self.tables);
        Ok(Resource {
            group: GROUP,
            plural: kind.plural,
            singular: kind.singular,
            kind: kind.kind,
            short_names: kind.short_names,
            categories: kind.categories,
            scope: kind.scope,
            faces: faces
                .map(|(face, table)| served(kind, face, *table).map(Arc::new))
                .collect::<Result<_, _>>()?,
            has_status: true,
            strategy: (self.strategy)(names),
            capabilities: self.capabilities,
        })
    }
}

fn served(kind: &Kind, face: &KindFace, table: Table) -> Result<Face, UnusableSchema> {
    let (spec, status) = ((face.spec)(), (face.status)());
    let members = [("spec", &spec), ("status", &status)];
    let schema =
        Structural::for_kind(kind.kind, face.version, kind.description, &members).map_err(|source| {
            UnusableSchema {
                kind: kind.kind,
                version: face.version,
                source,
            }
        })?;
    Ok(Face {
        version: face.version,
        api_version: format!("{GROUP}/{}", face.version).into(),
        schema: Arc::new(schema),
        table,
        conversion: face.conversion,
    })
}

macro_rules! registrations {
    ($($module:ident),*) => {
        /// Every kind with its rules, in the order of discovery.
        pub static REGISTRATIONS: &[&Registration] = &[$(&super::$module::REGISTRATION),*];
    };
}

drydock_proto::for_each_kind!(registrations);

/// The resources of every kind.
///
/// # Errors
/// A schema that cannot be read.
pub fn resources(names: &Arc<AllowedNames>) -> Result<Vec<Arc<Resource>>, UnusableSchema> {
    REGISTRATIONS
        .iter()
        .map(|registration| registration.resource(names).map(Arc::new))
        .collect()
}
