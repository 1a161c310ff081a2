//! machinery
