#pragma once

#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/cli/arguments.h"
#include "tools/cli/client.h"
#include "tools/cli/outcome.h"
#include "tools/cli/output.h"

namespace okcvm::cli {

using Json = nlohmann::ordered_json;

// What an answer holds under a key. An answer that lacks it, or has another type there, gives an empty value:
// a newer or older daemon is never a crash.
std::string text_in(const Json& object, std::string_view key);
std::uint64_t number_in(const Json& object, std::string_view key);
bool flag_in(const Json& object, std::string_view key);
const Json& member_in(const Json& object, std::string_view key);  // null if there is none
const Json& list_in(const Json& object, std::string_view key);    // an empty list if there is none
/// "pdf, xlsx" of a list of strings; `none` for an empty one.
std::string joined(const Json& list, std::string_view none = "");

/// A session's owner by name, else by number; of an answer with "owner".
std::string owner_text(const Json& session);
/// "/v1/sessions/ID" and what follows it.
std::string session_target(std::string_view id, std::string_view rest = "");
using Filters = std::vector<std::pair<std::string, std::string>>;
/// A query string out of the pairs whose value is not empty: "?limit=5&prefix=ab", or nothing.
std::string query(const Filters& pairs);

/// What a verb's run works with.
class Context {
 public:
  Context(Invocation invocation, Client client)
      : invocation_(std::move(invocation)), client_(std::move(client)), json_(invocation_.has("json")) {}

  const Invocation& args() const { return invocation_; }
  const Client& client() const { return client_; }
  const Output& out() const { return out_; }
  bool json() const { return json_; }

  /// The session argument's target, "/v1/sessions/12ab" + rest. The daemon resolves prefixes.
  std::string session(std::string_view rest = "") const {
    return session_target(args().argument("ID"), rest);
  }

  Outcome<Json> get(const std::string& target) const;
  /// All rows of a list that the daemon tells in pages, but no more than `most`: the last page with all of
  /// them as `member`. `cursor` names a row, percent-encoded, as what the next page begins after.
  Outcome<Json> get_pages(const std::string& target, const Filters& filters, const std::string& member,
                          const std::function<std::string(const Json& row)>& cursor,
                          std::size_t most = std::numeric_limits<std::size_t>::max()) const;
  Outcome<Json> post(const std::string& target, const Json& body) const;
  Outcome<Json> send(const Request& request) const;
  /// For work that may take long: the daemon tells how far it is, and a terminal shows it.
  Outcome<Json> get_with_progress(const std::string& target, const std::string& what) const;
  Outcome<Json> post_with_progress(const std::string& target, const Json& body,
                                   const std::string& what) const;

  /// The answer for a program: one line, or indented on a terminal.
  Outcome<void> print_json(const Json& answer) const;
  Outcome<void> print(std::string_view text) const { return out_.write(text); }
  /// What is not made of an answer: as it is, or for a program as {"text"}.
  Outcome<void> print_text(const std::string& text) const {
    return json_ ? print_json(Json{{"text", text}}) : print(text);
  }
  /// A remark for a person; not a part of the answer.
  void note(std::string_view text) const;

 private:
  Outcome<Json> send_with_progress(Request request, const std::string& what) const;

  Invocation invocation_;
  Client client_;
  Output out_;
  bool json_;
};

/// A body's bytes. `invalid_request` if a text in it is not UTF-8, which JSON cannot carry.
Outcome<std::string> to_body(const Json& json);

}  // namespace okcvm::cli
