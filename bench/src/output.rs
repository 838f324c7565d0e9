//! Output of the subcommands: figures, tables, names.

pub mod figures;
pub mod names;
pub mod table;
