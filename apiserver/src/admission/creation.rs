//! A create of an EvictionRequest, for tests of plugins.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::registry::admission::{Operation, Options, WriteAttributes};
use crate::registry::caller::Caller;
use crate::registry::endpoint::Endpoint;
use crate::registry::evictionrequest;
use crate::registry::part::Part;
use crate::registry::resource::Resource;
use crate::request::options::WriteOptions;
use crate::request::{AuditLevel, AuditRecord, UserInfo, Warnings};

/// Owns what a write refers to.
pub(super) struct Creation {
    resource: Arc<Resource>,
    endpoint: Endpoint,
    user: Arc<UserInfo>,
    warnings: Warnings,
    /// At level Metadata.
    pub(super) audit: AuditRecord,
    options: WriteOptions,
    object: Value,
}

impl Creation {
    /// A create of an object with the label `app: web`.
    pub(super) fn new() -> Self {
        let resource = Arc::new(evictionrequest::REGISTRATION.resource(&Arc::default()).unwrap());
        Self {
            endpoint: Endpoint::stored(&resource),
            resource,
            user: Arc::default(),
            warnings: Warnings::default(),
            audit: AuditRecord::new(AuditLevel::Metadata),
            options: WriteOptions::default(),
            object: json!({"metadata": {"name": "x", "labels": {"app": "web"}}}),
        }
    }

    pub(super) fn write(&self) -> WriteAttributes<'_> {
        WriteAttributes {
            operation: Operation::Create,
            resource: &self.resource,
            endpoint: &self.endpoint,
            caller: Caller {
                user: &self.user,
                user_agent: "",
                warnings: &self.warnings,
                audit: &self.audit,
            },
            part: Part::Main,
            namespace: "shop",
            name: "x",
            object: Some(&self.object),
            old: None,
            revision: None,
            options: Options::Write(&self.options),
            of_collection: false,
            dry_run: false,
        }
    }
}
