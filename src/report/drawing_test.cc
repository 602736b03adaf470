// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "npumoe/report.h"
#include "report/bar_chart.h"
#include "report/heat_map.h"
#include "report/page.h"
#include "report/scatter.h"
#include "report/svg.h"
#include "report/time_line.h"

namespace npumoe {
namespace {

size_t Count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

ScatterPoint Point(double seconds, double joules, bool exact = true) {
  return {seconds, joules, "a point", "green", exact, false};
}

TEST(NiceStep, IsOneTwoOrFiveTimesAPowerOfTen) {
  EXPECT_DOUBLE_EQ(NiceStep(10, 5), 2);
  EXPECT_DOUBLE_EQ(NiceStep(10, 10), 1);
  EXPECT_DOUBLE_EQ(NiceStep(49, 3), 20);
  EXPECT_DOUBLE_EQ(NiceStep(0.007, 2), 0.005);
  EXPECT_DOUBLE_EQ(NiceStep(95, 10), 10);
}

TEST(ThreeDigits, NeverShowsAnExponent) {
  EXPECT_EQ(ThreeDigits(0), "0");
  EXPECT_EQ(ThreeDigits(48.97), "49.0");
  EXPECT_EQ(ThreeDigits(0.1234), "0.123");
  EXPECT_EQ(ThreeDigits(9.996), "10.0");
  EXPECT_EQ(ThreeDigits(99.97), "100");
  EXPECT_EQ(ThreeDigits(1234567), "1234567");
  EXPECT_EQ(ThreeDigits(-2.5), "-2.50");
}

TEST(ParetoFront, HasWhatNoOtherBeats) {
  const std::vector<ScatterPoint> points{Point(3, 1), Point(1, 5), Point(2, 3),
                                         Point(2, 4), Point(4, 1), Point(1.5, 2, false)};
  EXPECT_EQ(ParetoFront(points, true), (std::vector<size_t>{1, 2, 0}));
  EXPECT_EQ(ParetoFront(points, false), (std::vector<size_t>{1, 5, 0}));
  EXPECT_TRUE(ParetoFront({}, true).empty());
  EXPECT_TRUE(ParetoFront({Point(1, 1, false)}, true).empty());
  // Of equals the first one.
  EXPECT_EQ(ParetoFront({Point(1, 1), Point(1, 1)}, true), (std::vector<size_t>{0}));
}

TEST(DrawScatter, DrawsEveryPointAndSurvivesOne) {
  const std::string svg = DrawScatter({Point(1, 5), Point(2, 3), Point(1.5, 2, false)}, "x");
  EXPECT_EQ(Count(svg, "<circle"), 3u);
  EXPECT_EQ(Count(svg, "class=\"front\""), 1u);
  EXPECT_EQ(Count(svg, "class=\"front dashed\""), 1u);
  EXPECT_EQ(Count(DrawScatter({Point(1, 1)}, "x"), "nan"), 0u);
  EXPECT_EQ(Count(DrawScatter({}, "x"), "<circle"), 0u);
}

TEST(DrawTiers, GivesEveryColourOnePath) {
  const std::string svg = DrawTiers({{0, 32, 33, 64}, {32, 4096, 0, 0}}, "map");
  EXPECT_EQ(Count(svg, "<path"), 4u);         // CPU, 32, 64, more
  EXPECT_EQ(Count(svg, "class=\"t0\""), 2u);  // and the legend's box
  EXPECT_EQ(Count(svg, "class=\"t1\""), 2u);
  EXPECT_EQ(Count(svg, "class=\"t2\""), 2u);
  EXPECT_EQ(Count(svg, "class=\"t3\""), 1u);
  EXPECT_EQ(Count(svg, "class=\"t8\""), 2u);
}

TEST(DrawPopularity, LayersWithoutExpertsAreEmpty) {
  const std::string svg = DrawPopularity({{}, {0.25, 0.25, 0.5, 0}}, "map");
  EXPECT_EQ(Count(svg, "<path"), 3u);  // even, double and never
  EXPECT_EQ(Count(DrawPopularity({{}, {}}, "map"), "<path"), 0u);
}

TEST(DrawBars, ShadesWhatWasPublishedOnly) {
  BarPanel panel{"title", "seconds", {{"a", 1, 0, "1.00", "", "green", false}}, 0, 0, 0};
  EXPECT_EQ(Count(DrawBars({{panel}}, "bars"), "published"), 0u);
  panel.low = 1, panel.high = 2;
  EXPECT_EQ(Count(DrawBars({{panel}}, "bars"), "class=\"published\""), 1u);
  panel.bars[0].value = 0;  // also when nothing has a length
  panel.low = panel.high = 0;
  EXPECT_EQ(Count(DrawBars({{panel}}, "bars"), "nan"), 0u);
}

TEST(DrawTimeLine, DrawsEveryZoneAndAnEmptyBand) {
  const std::string svg = DrawTimeLine({{"a", {{"npu", "experts", 0, 1}, {"cpu", "experts", 0.5, 2}}}, {"b", {}}}, "t");
  EXPECT_EQ(Count(svg, "npu, experts: 0 to 1000 ms"), 1u);
  EXPECT_EQ(Count(svg, "cpu, experts: 500 to 2000 ms"), 1u);
  EXPECT_EQ(Count(svg, "nan"), 0u);
}

TEST(Page, EscapesAllText) {
  Page page("<b>&\"'");
  page.Paragraph("<i>\n");
  page.Figure({}, "<u>", {{"<th>"}, {{"<td class=x>"}}});
  const std::string html = std::move(page).Take();
  EXPECT_NE(html.find("&lt;b&gt;&amp;&quot;&#39;"), std::string::npos);
  EXPECT_EQ(Count(html, "<b>") + Count(html, "<i>") + Count(html, "<u>") + Count(html, "<td class"), 0u);
  EXPECT_EQ(Count(html, "Figure 1. &lt;u&gt;"), 1u);
}

TEST(PublishedFigures, SayWhereTheyAreFrom) {
  for (const PublishedFigure& figure : PublishedFigures()) {
    EXPECT_FALSE(figure.key.empty() || figure.what.empty() || figure.source.empty());
    EXPECT_LE(figure.low, figure.high);
    EXPECT_EQ(figure.confidence == "high", figure.source.starts_with("abstract")) << figure.key;
  }
}

}  // namespace
}  // namespace npumoe
