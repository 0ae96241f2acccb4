#include "tests/bench/report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

namespace okcvm::bench {
namespace {

std::string figure(double value, int digits) {
  std::ostringstream text;
  text.setf(std::ios::fixed);
  text.precision(digits);
  text << value;
  return text.str();
}

std::string milliseconds(double seconds) {
  return figure(seconds * 1000, seconds < 0.01 ? 2 : 0);
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double median_ratio(const Measured& measured, const std::string& contestant) {
  const auto& native = measured.seconds.at("native");
  const auto& own = measured.seconds.at(contestant);
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(native.size(), own.size()); ++i) ratios.push_back(own[i] / native[i]);
  return median(ratios);
}

std::string as_markdown(const std::vector<Measured>& table, const std::vector<std::string>& contestants) {
  std::ostringstream text;
  text << "| work | native (ms) |";
  for (const auto& name : contestants)
    if (name != "native") text << " " << name << " |";
  text << " target |\n| --- | ---: |";
  for (std::size_t i = 0; i < contestants.size(); ++i) text << " ---: |";
  text << "\n";
  for (const auto& row : table) {
    text << "| " << row.row << " | " << milliseconds(median(row.seconds.at("native"))) << " |";
    for (const auto& name : contestants) {
      if (name == "native") continue;
      const double ratio = median_ratio(row, name);
      const bool misses = name == "okcvm" && row.target > 0 && ratio > row.target;
      text << " " << (misses ? "**" : "") << figure(ratio, 2) << (misses ? "**" : "") << " |";
    }
    text << " " << (row.target > 0 ? "≤ " + figure(row.target, row.target < 2 ? 2 : 1) : "") << " |\n";
  }
  return text.str();
}

std::string requests_as_markdown(const std::vector<Measured>& table) {
  std::ostringstream text;
  text << "| work | requests | by opcode |\n| --- | ---: | --- |\n";
  for (const auto& row : table) {
    std::vector<std::pair<std::uint64_t, std::string>> sorted;
    std::uint64_t sum = 0;
    for (const auto& [opcode, count] : row.requests) {
      sorted.emplace_back(count, opcode);
      sum += count;
    }
    std::sort(sorted.rbegin(), sorted.rend());
    text << "| " << row.row << " | " << sum << " |";
    for (const auto& [count, opcode] : sorted) text << " " << opcode << " " << count;
    text << " |\n";
  }
  return text.str();
}

nlohmann::json as_json(const std::vector<Measured>& table, const std::vector<std::string>& contestants) {
  auto rows = nlohmann::json::array();
  for (const auto& row : table) {
    nlohmann::json entry{{"work", row.row}, {"requests", row.requests}};
    if (row.target > 0) entry["target"] = row.target;
    for (const auto& name : contestants) {
      entry["seconds"][name] = row.seconds.at(name);
      entry["ratio"][name] = median_ratio(row, name);
    }
    rows.push_back(std::move(entry));
  }
  return rows;
}

}  // namespace okcvm::bench
