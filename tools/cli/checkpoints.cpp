#include <ctime>
#include <fstream>
#include <iostream>

#include "policy/percent_encoding.h"
#include "tools/cli/handlers.h"
#include "tools/cli/text.h"

namespace okcvm::cli::run {

namespace {

constexpr std::size_t kLargestDocument = 1 << 20;  // the daemon takes no larger JSON body

/// The conversation state: a JSON document from a file or, for "-", standard input. As it stands there, so
/// that nothing in it is rounded.
Outcome<std::string> read_document(const std::string& file) {
  std::ifstream stream;
  if (file != "-") {
    stream.open(file, std::ios::binary);
    if (!stream) return system_failure(errno, file);
  }
  std::istream& input = file == "-" ? std::cin : stream;
  std::string document(kLargestDocument + 1, '\0');
  input.read(document.data(), static_cast<std::streamsize>(document.size()));
  document.resize(static_cast<std::size_t>(input.gcount()));
  if (document.size() > kLargestDocument)
    return refuse("invalid_request", "a checkpoint's document may be at most 1 MiB");
  if (document.starts_with("\uFEFF")) document.erase(0, 3);
  if (!Json::accept(document))
    return refuse("invalid_request", (file == "-" ? "standard input" : file) + " is not a JSON document");
  return document;
}

}  // namespace

Outcome<void> checkpoint_save(Context& context) {
  const auto& args = context.args();
  if (args.has("snapshot") && args.has("with-snapshot"))
    return usage("--snapshot and --with-snapshot exclude each other; see 'okcvm help checkpoint save'");
  const auto file = args.argument("FILE");
  const auto document = read_document(file.empty() ? "-" : file);
  if (!document) return tl::unexpected(document.error());
  Json body = Json::object();
  if (auto id = args.option("id")) body["id"] = *id;
  if (auto parent = args.option("parent")) body["parent_id"] = *parent;
  if (auto snapshot = args.option("snapshot")) body["snapshot"] = *snapshot;
  if (args.has("with-snapshot")) body["snapshot"] = true;
  const auto others = to_body(body);
  if (!others) return tl::unexpected(others.error());
  Request request;
  request.method = "POST";
  request.target = context.session("/checkpoints");
  request.body = "{\"data\":" + *document + (body.empty() ? "}" : "," + others->substr(1));
  const auto answer = context.send(request);
  if (!answer) return tl::unexpected(answer.error());
  return context.json() ? context.print_json(*answer) : context.print(visible(text_in(*answer, "id")) + "\n");
}

Outcome<void> checkpoint_load(Context& context) {
  std::string which = context.args().argument("CHECKPOINT");
  if (which.empty()) which = "latest";
  const auto found = context.get(context.session("/checkpoints/" + percent_encoded(which)));
  if (!found) return tl::unexpected(found.error());
  if (!context.args().has("restore"))
    return context.json() ? context.print_json(*found) : context.print_json(member_in(*found, "data"));

  const auto target = "/checkpoints/" + percent_encoded(text_in(*found, "id")) + "/restore";
  const auto answer = context.post_with_progress(context.session(target), Json::object(), "restore");
  if (!answer) return tl::unexpected(answer.error());
  return context.json() ? context.print_json(*answer)
                        : context.print_json(member_in(member_in(*answer, "checkpoint"), "data"));
}

Outcome<void> checkpoint_list(Context& context) {
  const auto answer = context.get(
      context.session("/checkpoints" + query({{"limit", context.args().option("limit").value_or("")}})));
  if (!answer) return tl::unexpected(answer.error());
  if (context.json()) return context.print_json(*answer);
  Table table({"", "CHECKPOINT", "PARENT", "SNAPSHOT", "SAVED", ">SIZE"});
  for (const auto& row : list_in(*answer, "checkpoints"))
    table.row({flag_in(row, "head") ? "*" : " ", text_in(row, "id"), or_dash(text_in(row, "parent_id")),
               or_dash(text_in(row, "snapshot").substr(0, 12)),
               age(text_in(row, "created_at"), std::time(nullptr)), human_size(number_in(row, "bytes"))});
  return context.print(table.text());
}

}  // namespace okcvm::cli::run
