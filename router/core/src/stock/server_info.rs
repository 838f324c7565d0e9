//! What a stock server reports about itself and its models.

/// Report of a stock server about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerInfo {
    /// Models that it serves; empty if it reports that it serves none at the moment.
    pub models: Vec<StockModel>,
    /// Number of requests that it runs at a time, reported or assumed.
    pub n_slots: u16,
    /// Number of listed models that were dropped because of the limit.
    pub n_left_out: usize,
}

/// One model of a stock server, as the server lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StockModel {
    /// Model names; at least one.
    pub names: Vec<String>,
    /// Longest sequence, reported or assumed. Units: tokens.
    pub context_tokens: u32,
    /// Properties that distinguish the model from another one with the same name, as far as the server reports them.
    pub identity: String,
    /// Whether the server has loaded the model.
    pub residence: Residence,
}

/// Whether a server has loaded one of its models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residence {
    /// It has, or does not report it.
    Loaded,
    /// The server loads the model on the first request, and holds no state until then.
    Unloaded,
}
