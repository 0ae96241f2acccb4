#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "policy/error.h"
#include "tools/daemon/http/message.h"

namespace okcvm::daemon {

inline constexpr std::size_t kMaxLabel = 64 << 10;  // of a snapshot
inline constexpr std::size_t kMaxDepth = 64;        // of nested JSON

/// Reads a request's JSON object strictly: every field must be asked for and be of its type. Getters answer
/// an empty value where something is wrong; the first wrong is kept, and end() tells it. Not thread-safe.
class Fields final {
 public:
  /// An empty body is an empty object.
  explicit Fields(const std::string& body);
  /// Of a request that says all in its body: nothing in its query is asked for.
  explicit Fields(const Request& request);

  bool has(std::string_view name);
  std::optional<std::string> text(std::string_view name, std::size_t most = 4096);
  std::string required_text(std::string_view name, std::size_t most = 4096);
  bool flag(std::string_view name, bool otherwise = false);
  std::optional<std::int64_t> integer(std::string_view name, std::int64_t least, std::int64_t most);
  std::optional<std::map<std::string, std::string>> texts_by_name(std::string_view name);
  /// A session's labels, in the field "labels".
  std::optional<std::map<std::string, std::string>> labels();
  /// What is wrong with labels; empty if nothing is.
  static std::string_view problem_of(const std::map<std::string, std::string>& labels);
  std::optional<std::vector<std::string>> texts(std::string_view name);
  /// The object in a field, as Fields of its own whose errors name both.
  std::optional<Fields> object(std::string_view name);
  /// Anything, which must be there.
  nlohmann::json required_value(std::string_view name);
  /// Something is wrong with a field beyond its type.
  void refuse(std::string_view name, std::string_view reason);
  /// Takes over what was wrong inside of an object.
  void adopt(Fields& inner);

  /// `invalid_request`: the first wrong, or a field that nobody asked for.
  Result<void> end();

 private:
  explicit Fields(nlohmann::json value, std::string prefix);
  const nlohmann::json* take(std::string_view name);

  nlohmann::json value_;
  std::string prefix_;
  std::set<std::string, std::less<>> asked_;
  std::optional<Error> error_;
};

/// Reads a request's query strictly, like Fields.
class QueryFields final {
 public:
  explicit QueryFields(const std::map<std::string, std::string, std::less<>>& query) : query_(query) {}

  /// Whether it is named, with a value or without.
  bool has(std::string_view name);
  /// One without a value counts as absent, which is what clients make of a variable that is not set.
  std::optional<std::string> text(std::string_view name);
  /// Set by its name alone, too.
  bool flag(std::string_view name, bool otherwise = false);
  std::optional<std::int64_t> integer(std::string_view name, std::int64_t least, std::int64_t most);
  /// `?limit`: how many rows of a list to tell; no more than `most`, which an answer in memory may hold.
  std::size_t limit(std::size_t most);
  Result<void> end();

 private:
  void refuse(std::string_view name, std::string_view reason);
  const std::map<std::string, std::string, std::less<>>& query_;
  std::set<std::string, std::less<>> asked_;
  std::optional<Error> error_;
};

/// "0755" and the like, up to 0777.
std::optional<mode_t> parse_mode(std::string_view text);
std::string mode_text(mode_t mode);

}  // namespace okcvm::daemon
