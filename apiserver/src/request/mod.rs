//! What does a client ask for? Parsed once, before anything else looks at the request.

pub mod context;
pub mod duration;
pub mod info;
pub mod negotiate;
pub mod options;
pub mod projection;
pub mod query;
pub mod user;
pub mod warnings;

pub use self::{
    context::RequestContext,
    info::{RequestInfo, ResourceRequest, Verb},
    query::Query,
    user::UserInfo,
    warnings::Warnings,
};
