//! Compiler of rules for one model's vocabulary, and JSON schemas as masks over it, by llguidance's parser.
//!
//! The vocabulary becomes a trie once per model, in the background. A schema is compiled on a separate thread with a
//! deep stack; each choice of a response then starts with a copy of the parser. The work of a step is limited. A step
//! that exceeds the limits, or panics, fails only its own response.
//!
//! Not here: the accepted schemas (`schema`), the choice among the allowed tokens (the engine).

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{ParserFactory, TokenParser};
use moka::sync::Cache;
use serde_json::{Value, json};
use warmpath_common::ids::Token;

use crate::arguments::bracketed;
use crate::gbnf::{Grammar, GrammarVocabulary};
use crate::schema::{ValueGrammar, check_products};

/// White space between the parts of a response: none, a space, or a line break with indentation.
///
/// Source: `SPACE_RULE` of llama.cpp's json-schema-to-grammar. Without a limit a model may generate blanks forever.
const WHITESPACE: &str = r" |\n{1,2}[ \t]{0,20}";

/// Characters that may follow a backslash. `u` is excluded, because its digits could spell a property's name a second
/// way.
const ESCAPES: &str = "nrbtf\\\"";

/// Stack size for compiling a schema. Source: 6 kB for each of the 10,000 schemas that `schema` allows, doubled.
const STACK_BYTES: usize = 128 << 20;

/// Maximum work of the lexer for one mask. Source: docs/decisions/0023; some 14,000 a millisecond.
const STEP_LEXER_FUEL: u64 = 100_000;

/// Maximum items of the parser for one mask. Source: as above; some 20,000 a millisecond.
const STEP_ITEMS_MAX: usize = 30_000;

/// Maximum items of the parser after one token. Source: an object has four for each optional property, so this allows
/// some 600 of these.
const ROW_ITEMS_MAX: usize = 2500;

/// Maximum states of one response's lexer. Source: a string of limited length has one for each character, so this
/// allows some 50,000 characters.
const LEXER_STATES_MAX: usize = 50_000;

/// Maximum memory of one response's lexer, checked every [`LOOK_TOKENS`]. Units: bytes. Source: 1 kB for each of
/// [`LEXER_STATES_MAX`].
const LEXER_BYTES_MAX: usize = 48 << 20;

/// Maximum memory of cached compiled schemas of arguments. Units: bytes. Source: four requests with the maximum number
/// of tools, of 256 kB each; the schemas of usual tools take less.
const ARGUMENTS_KEPT_BYTES_MAX: u64 = 256 << 20;

/// Memory of a compiled schema, besides its lexer, for each byte of its text. Source: 20,000 numbers in a `const` (200
/// kB) take 27 MB while they are compiled (docs/decisions/0023), of which some of the lexer's is counted by itself.
const BYTES_PER_TEXT_BYTE: usize = 64;

/// Maximum memory of cached grammars. Units: bytes. Source: room for some 200 grammars of 60 kB, which take 0.3 MB
/// each, or for six of the largest, which take 10 MB.
const GRAMMARS_KEPT_BYTES_MAX: u64 = 64 << 20;

/// Number of tokens between two checks of the lexer's memory. Source: so few tokens add little compared with the limit.
const LOOK_TOKENS: u32 = 32;

/// Separators in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Separators {
    /// Between items and members.
    pub item: &'static str,
    /// Between a member's name and its value.
    pub key: &'static str,
}

/// Function that returns the token with a text, such as `<think>`, if a single token has it.
type TokenByText = Box<dyn Fn(&str) -> Option<Token> + Send + Sync>;

/// Compiler of schemas and grammars for one model's vocabulary. It caches what clients send with every request.
pub struct RuleCompiler {
    factory: ParserFactory,
    token_by_text: TokenByText,
    /// Tokens with a curly bracket, ascending.
    bracketed: Arc<[Token]>,
    arguments: KnownSchemas,
    /// Compiled grammars by the hash of their text.
    grammars: Cache<blake3::Hash, Arc<Grammar>>,
}

/// Cache of compiled schemas of arguments by the hash of their text.
struct KnownSchemas(Cache<blake3::Hash, KnownSchema>);

#[derive(Clone)]
struct KnownSchema {
    compiled: CompiledSchema,
    text_bytes: usize,
}

impl KnownSchemas {
    /// Returns an empty cache of this size. Units: bytes.
    fn new(bytes_max: u64) -> Self {
        let weigh = |_: &blake3::Hash, entry: &KnownSchema| u32::try_from(entry.n_bytes()).unwrap_or(u32::MAX);
        Self(Cache::builder().max_capacity(bytes_max).weigher(weigh).build())
    }

    /// Returns the compiled schema of a text, from `compile` if it is new.
    ///
    /// Errors: those of `compile`.
    fn get(
        &self,
        text: &str,
        compile: impl FnOnce() -> Result<CompiledSchema, String>,
    ) -> Result<CompiledSchema, String> {
        let compile = || Ok(KnownSchema { compiled: compile()?, text_bytes: text.len() });
        let entry = self.0.try_get_with(blake3::hash(text.as_bytes()), compile);
        entry.map(|entry| entry.compiled).map_err(|reason: Arc<String>| String::clone(&reason))
    }
}

impl KnownSchema {
    fn n_bytes(&self) -> usize {
        let lexer_bytes = self.compiled.0.parser.lexer_stats().num_bytes;
        lexer_bytes.saturating_add(self.text_bytes.saturating_mul(BYTES_PER_TEXT_BYTE))
    }
}

impl RuleCompiler {
    /// Builds the trie of a vocabulary from the texts of its tokens, which are empty for control tokens and those that
    /// end a response, so that no schema can allow them by their text; `ends` has the tokens that end a response.
    ///
    /// Cost: some 0.6 s and 60 MB for 150,000 tokens. Errors: `ends` is empty.
    pub fn new(
        mut words: Vec<Vec<u8>>,
        ends: &[Token],
        token_by_text: impl Fn(&str) -> Option<Token> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let Some(first_end) = ends.first().copied() else {
            return Err("the model's vocabulary has no token that ends an answer".to_owned());
        };
        let n_vocab = Token::try_from(words.len()).expect("tokens are numbered by a u32");
        let info = TokRxInfo::new(n_vocab, first_end);
        words.iter_mut().filter(|word| !is_text(word)).for_each(Vec::clear);
        let build = || {
            let trie = TokTrie::from(&info, &words).with_eos_tokens(ends);
            let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            let slices = SlicedBiasComputer::json_slices();
            ParserFactory::new(&env, InferenceCapabilities::default(), &slices).map_err(described)
        };
        let unusable = "the model's vocabulary cannot be made into a trie";
        let mut factory = guarded(build).map_err(|_| unusable.to_owned())?;
        *factory.quiet().limits_mut() = limits();
        let bracketed = bracketed(factory.tok_env().tok_trie());
        let weigh = |_: &blake3::Hash, grammar: &Arc<Grammar>| u32::try_from(grammar.n_bytes()).unwrap_or(u32::MAX);
        Ok(Self {
            factory,
            token_by_text: Box::new(token_by_text),
            bracketed,
            arguments: KnownSchemas::new(ARGUMENTS_KEPT_BYTES_MAX),
            grammars: Cache::builder().max_capacity(GRAMMARS_KEPT_BYTES_MAX).weigher(weigh).build(),
        })
    }

    /// Returns the tokens with a curly bracket, ascending.
    pub fn bracketed(&self) -> &Arc<[Token]> {
        &self.bracketed
    }

    /// Returns the vocabulary, with its trie.
    pub fn vocabulary(&self) -> &TokEnv {
        self.factory.tok_env()
    }

    /// Returns a compiled GBNF grammar, which may name `n_beyond` tokens beyond the vocabulary.
    ///
    /// Errors: the parser's message, for the client.
    ///
    /// Cost: microseconds for a cached grammar, milliseconds for others, some 0.15 s for the largest.
    pub fn grammar(&self, text: &str, n_beyond: usize) -> Result<Arc<Grammar>, String> {
        let compile = || {
            let n_vocab = u32::try_from(self.vocabulary().tok_trie().vocab_size() + n_beyond).unwrap_or(u32::MAX);
            let tokens = GrammarVocabulary { n_vocab, named: &*self.token_by_text };
            Grammar::new(text, tokens).map(Arc::new).map_err(|error| format!("the grammar does not parse: {error}"))
        };
        let key = blake3::Hasher::new().update(&n_beyond.to_le_bytes()).update(text.as_bytes()).finalize();
        let result = self.grammars.try_get_with(key, compile);
        result.map_err(|reason: Arc<String>| String::clone(&reason))
    }

    /// Compiles a normalized schema of arguments like [`Self::compile`], and caches it, because clients send their
    /// tools with every request.
    ///
    /// `separators` has the texts between the parts of the JSON.
    pub fn compile_arguments(&self, schema: &Value, separators: Separators) -> Result<CompiledSchema, String> {
        let with_options = with_options(schema, Some(separators));
        let text = with_options.to_string();
        self.arguments.get(&text, || self.compile_grammar(TopLevelGrammar::from_json_schema(with_options), schema))
    }

    /// Compiles the constraint of a single argument, and caches it.
    ///
    /// Errors: the reason, for the client.
    pub fn compile_value(&self, value: &ValueGrammar, separators: Separators) -> Result<CompiledSchema, String> {
        let lark = value.lark(|schema| with_options(schema, Some(separators)).to_string());
        self.arguments.get(&lark, || self.compile_grammar(TopLevelGrammar::from_lark(lark.clone()), &value.schema))
    }

    /// Compiles a normalized schema.
    ///
    /// Cost: a millisecond, up to half a second for the largest schemas.
    /// Errors: the reason, for the client.
    pub fn compile(&self, schema: &Value) -> Result<CompiledSchema, String> {
        self.compile_grammar(TopLevelGrammar::from_json_schema(with_options(schema, None)), schema)
    }

    /// Compiles the grammar of a normalized schema.
    fn compile_grammar(&self, grammar: TopLevelGrammar, schema: &Value) -> Result<CompiledSchema, String> {
        let result = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("schema".to_owned()).stack_size(STACK_BYTES);
            let job = thread.spawn_scoped(scope, || {
                guarded(|| {
                    check_products(schema)?;
                    let mut parser = self.factory.create_parser(grammar).map_err(described)?;
                    parser.start_without_prompt();
                    // The first mask shows whether any response is possible, and fills the lexer's caches.
                    let mut trial = parser.deep_clone();
                    trial.compute_mask().map_err(described)?;
                    check_memory(&trial)?;
                    Ok(parser)
                })
            });
            job.map(|job| job.join())
        });
        match result {
            Ok(Ok(Ok(parser))) => Ok(CompiledSchema(Arc::new(parser))),
            Ok(Ok(Err(reason))) => Err(format!("the schema cannot be followed: {reason}")),
            Ok(Err(_)) => Err("the schema cannot be followed: its compiler failed".to_owned()),
            Err(error) => Err(format!("there is no thread to compile the schema: {error}")),
        }
    }
}

/// Returns whether a token's bytes can be part of a text. The byte 0xFF cannot: it marks special tokens in the trie.
fn is_text(bytes: &[u8]) -> bool {
    !bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER)
}

fn limits() -> ParserLimits {
    ParserLimits {
        step_lexer_fuel: STEP_LEXER_FUEL,
        max_items_in_row: ROW_ITEMS_MAX,
        step_max_items: STEP_ITEMS_MAX,
        max_lexer_states: LEXER_STATES_MAX,
        // Verbose errors contain the response so far, and errors are logged.
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// Returns the schema with the compiler's options, which it reads from the schema.
fn with_options(schema: &Value, separators: Option<Separators>) -> Value {
    let options = match separators {
        None => json!({ "whitespace_pattern": WHITESPACE, "json_allowed_escapes": ESCAPES }),
        Some(Separators { item, key }) => json!({
            "whitespace_flexible": false, "item_separator": item, "key_separator": key, "json_allowed_escapes": ESCAPES,
        }),
    };
    let mut keywords = match schema {
        Value::Object(keywords) => keywords.clone(),
        Value::Bool(true) => serde_json::Map::new(),
        _ => return schema.clone(),
    };
    keywords.insert("x-guidance".to_owned(), options);
    Value::Object(keywords)
}

fn described(error: impl fmt::Display) -> String {
    error.to_string()
}

/// Runs work that may panic on an unexpected schema.
///
/// Errors: the reason in one line, for the client.
fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let error = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error,
        Err(_) => String::new(),
    };
    // An error in a pattern has the pattern on one line, a caret below it, and the reason on the last line.
    let is_word = |line: &&str| !line.is_empty() && !line.chars().all(|c| c == '^');
    let line = error.lines().map(str::trim).filter(is_word).collect::<Vec<_>>().join(" ");
    if line.is_empty() || line.starts_with("panic") {
        return Err("it exceeds the limits of the schema compiler".to_owned());
    }
    Err(line.chars().take(REASON_CHARS_MAX).collect())
}

/// Checks the memory of a parser's lexer.
///
/// Errors: the reason, for the client.
fn check_memory(parser: &TokenParser) -> Result<(), String> {
    let n_bytes = parser.parser.lexer_stats().num_bytes;
    if n_bytes > LEXER_BYTES_MAX {
        return Err(format!("its patterns take more than {LEXER_BYTES_MAX} bytes"));
    }
    Ok(())
}

/// Longest reason for a client, which may quote the schema. Source: four lines of a terminal.
const REASON_CHARS_MAX: usize = 300;

/// A schema compiled for a model, ready for any number of responses; cheap to clone.
#[derive(Clone)]
pub struct CompiledSchema(Arc<TokenParser>);

impl CompiledSchema {
    /// Returns a constraint at the start of a response. Cost: microseconds, milliseconds for the largest schemas.
    pub fn begin(&self) -> Constraint {
        Constraint { parser: self.0.deep_clone(), n_tokens: 0 }
    }
}

impl fmt::Debug for CompiledSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CompiledSchema")
    }
}

impl PartialEq for CompiledSchema {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Tokens that may come next.
pub enum Allowed {
    /// Any of these tokens, including those that end a response if it may end.
    Tokens(SimpleVob),
    /// Only the tokens that end a response, because it is complete.
    Ends(SimpleVob),
}

impl Allowed {
    /// Returns the tokens.
    pub fn into_mask(self) -> SimpleVob {
        let (Self::Tokens(mask) | Self::Ends(mask)) = self;
        mask
    }
}

/// Constraint of one response.
pub struct Constraint {
    parser: TokenParser,
    n_tokens: u32,
}

impl Constraint {
    /// Returns the tokens that may come next.
    ///
    /// Errors: the reason why they cannot be determined within the limits, for the client.
    pub fn allowed(&mut self) -> Result<Allowed, String> {
        if self.parser.stopped() {
            return Ok(Allowed::Ends(self.parser.token_env.tok_trie().eos_token_set()));
        }
        guarded(|| self.parser.compute_mask().map_err(described)).map(Allowed::Tokens)
    }

    /// Advances by a chosen token that is allowed; one that ends the response changes nothing.
    ///
    /// Errors: like [`Constraint::allowed`].
    pub fn take(&mut self, token: Token) -> Result<(), String> {
        if self.parser.stopped() || self.parser.token_env.tok_trie().eos_tokens().contains(&token) {
            return Ok(());
        }
        self.n_tokens += 1;
        let parser = &mut self.parser;
        guarded(|| {
            parser.consume_token(token).map_err(described)?;
            parser.check_stop().map_err(described)
        })?;
        if self.n_tokens.is_multiple_of(LOOK_TOKENS) {
            return check_memory(&self.parser);
        }
        Ok(())
    }

    /// Advances by text that is already part of the response.
    ///
    /// Errors: the reason why the text cannot be followed within the limits, or that the schema does not allow it.
    pub fn take_text(&mut self, text: &[u8]) -> Result<(), String> {
        for token in self.parser.token_env.tokenize_bytes(text) {
            match self.allowed()? {
                Allowed::Tokens(mask) if mask.is_allowed(token) => self.take(token)?,
                Allowed::Tokens(_) | Allowed::Ends(_) => {
                    return Err("the text right after the reasoning does not match it".to_owned());
                }
            }
        }
        Ok(())
    }

    /// Returns whether a text may come next.
    pub fn fits(&self, text: &[u8]) -> bool {
        Self { parser: self.parser.deep_clone(), n_tokens: self.n_tokens }.take_text(text).is_ok()
    }

    /// Returns whether the text so far is a complete response.
    pub fn is_complete(&mut self) -> bool {
        self.parser.is_accepting()
    }

    /// Returns whether a token has text other than white space.
    pub fn begins_text(&self, token: Token) -> bool {
        let trie = self.parser.token_env.tok_trie();
        let begins_with_space = trie.token(token).first().is_some_and(u8::is_ascii_whitespace);
        !begins_with_space && !trie.eos_tokens().contains(&token)
    }

    /// Returns the tokens that end a response.
    pub fn ends(&self) -> &[Token] {
        self.parser.token_env.tok_trie().eos_tokens()
    }
}

#[cfg(test)]
mod tests;
