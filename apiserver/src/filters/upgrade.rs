//! Rejects protocol upgrades with 400: no handler supports them.

use http::{HeaderMap, header};

use crate::error::ApiError;

pub(super) fn refuse(headers: &HeaderMap) -> Result<(), ApiError> {
    if headers.contains_key(header::UPGRADE) {
        return Err(ApiError::bad_request("protocol upgrades are not supported"));
    }
    Ok(())
}
