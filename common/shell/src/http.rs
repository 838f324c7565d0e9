//! Requests and responses, as far as router and worker treat them alike: bodies, keys, errors in every dialect, lists
//! of models, images by URL.

pub mod api_error;
pub mod bearer;
pub mod body;
pub mod dialect_errors;
pub mod event_stream;
pub mod image_urls;
pub mod models;
pub mod one_line;
pub mod refusal;
pub mod timestamps;
