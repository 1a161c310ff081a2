//! What a client asks for: parsed once, before anything else reads the request.

pub mod audit;
pub mod context;
pub mod duration;
pub mod freshness;
pub mod info;
pub mod negotiate;
pub mod options;
pub mod projection;
pub mod query;
pub mod user;
pub mod warnings;

pub use self::{
    audit::{AuditLevel, AuditRecord},
    context::RequestContext,
    info::{RequestInfo, ResourceRequest, Verb},
    query::Query,
    user::UserInfo,
    warnings::Warnings,
};
