//! What a kind registers with the server: its names and versions, its rules, and the columns of `kubectl get`.

use std::sync::Arc;

use drydock_machinery::names::AllowedNames;
use drydock_machinery::schema::{SchemaError, Structural};
use drydock_proto::kinds::{Face as KindFace, GROUP, Kind};
use drydock_proto::protobuf::message_of_kind;
use serde_json::Value;

use super::face::{Face, Table};
use super::resource::{Capabilities, Resource};
use super::strategy::Strategy;

/// Creates the strategy of a kind. `names` are the reserved names that requesters and interceptors may use.
pub type MakeStrategy = fn(names: &Arc<AllowedNames>) -> Box<dyn Strategy>;

/// Valid objects of a kind, for tests that run over every kind. Objects with different numbers have different names.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// `metadata.name` of the object with a number from 0 to 99.
    pub name: fn(usize) -> String,
    /// Its `spec`, in the shape of the hub.
    pub spec: fn(usize) -> Value,
    /// A valid update of `spec`, as a merge patch of it.
    pub change: fn() -> Value,
}

/// A kind with everything the server needs to serve it.
#[derive(Debug)]
pub struct Registration {
    kind: Kind,
    strategy: MakeStrategy,
    tables: &'static [Table],
    capabilities: Capabilities,
    sample: Sample,
}

/// A schema that the API machinery does not support: a bug in this program.
#[derive(Debug, thiserror::Error)]
#[error("the schema of {kind} in {version} is unusable")]
pub struct UnusableSchema {
    kind: &'static str,
    version: &'static str,
    #[source]
    source: SchemaError,
}

impl Registration {
    /// Registers a kind. `tables` has one table for each face of the kind, in the same order.
    ///
    /// # Panics
    /// If the numbers of tables and faces differ. Registrations are constants, so such a kind does not compile.
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

    /// The names, the scope and the faces of the kind.
    #[must_use]
    pub const fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Valid objects of the kind.
    #[must_use]
    pub const fn sample(&self) -> &Sample {
        &self.sample
    }

    /// The resource that serves the kind.
    ///
    /// # Errors
    /// A schema that the API machinery does not support.
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
                .map(|(face, table)| served_face(kind, face, *table).map(Arc::new))
                .collect::<Result<_, _>>()?,
            has_status: true,
            strategy: (self.strategy)(names),
            capabilities: self.capabilities,
        })
    }
}

fn served_face(kind: &Kind, face: &KindFace, table: Table) -> Result<Face, UnusableSchema> {
    let names = face.alias.map_or_else(|| kind.names(), |alias| alias.names);
    let (spec, status) = ((face.spec)(), (face.status)());
    let members = [("spec", &spec), ("status", &status)];
    let schema =
        Structural::for_kind(names.kind, face.version, names.description, &members).map_err(|source| {
            UnusableSchema {
                kind: names.kind,
                version: face.version,
                source,
            }
        })?;
    Ok(Face {
        version: face.version,
        api_version: format!("{GROUP}/{}", face.version).into(),
        names,
        alias: face.alias,
        schema: Arc::new(schema),
        message: message_of_kind(face.version, names.kind),
        table,
        conversion: face.conversion,
        paths: face.paths,
    })
}
