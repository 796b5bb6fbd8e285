// Draws a dashboard from its JSON with Grafana's own components, as far as they
// are to be had without its server: time series, big values, bar gauges. A test
// opens it and reads window.dashboard.
import { createTheme, dateTime, getDisplayValueAlignmentFactors, ThemeContext } from '@grafana/data';
import { BarGauge, BigValue, GlobalStyles, PanelChrome, TimeSeries, VizRepeater } from '@grafana/ui';
import { Component, useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';
import { frames, range } from './query.js';

const theme = createTheme({ colors: { mode: 'dark' } });
const margin = 8;
const column = (1600 - margin) / 24;
const line = 38;

// What a test wants to know: what is drawn, what is empty, what went wrong.
const state = (window.dashboard = { wanted: -1, drawn: [], empty: {}, errors: [] });

class Guard extends Component {
  state = { failed: false };
  static getDerivedStateFromError() {
    return { failed: true };
  }
  componentDidCatch(error) {
    state.errors.push(`${this.props.title}: ${error.message}`);
    state.drawn.push(this.props.title);
  }
  render() {
    return this.state.failed ? <pre>failed</pre> : this.props.children;
  }
}

function Lines({ panel, answer, width, height }) {
  const timeRange = { from: dateTime(range.from * 1000), to: dateTime(range.to * 1000) };
  return (
    <TimeSeries
      frames={answer}
      structureRev={1}
      timeRange={{ ...timeRange, raw: timeRange }}
      timeZone="utc"
      width={width}
      height={height}
      legend={panel.options.legend}
      options={panel.options}
      replaceVariables={(text) => text}
    >
      {() => null}
    </TimeSeries>
  );
}

function Numbers({ panel, answer, width, height, renderValue, orientation }) {
  const getValues = () =>
    answer.map(({ name, fields: [, field] }) => ({
      field: field.config,
      display: { ...field.display(field.values.at(-1)), title: name, ...colour(field) },
      processor: field.display,
    }));
  return (
    <VizRepeater
      getValues={getValues}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      renderValue={renderValue}
      source={answer}
      renderCounter={1}
      width={width}
      height={height}
      orientation={orientation}
      minVizHeight={16}
      minVizWidth={8}
      itemSpacing={8}
      autoGrid={panel.type === 'stat'}
    />
  );
}

// A fixed colour of an override wins over thresholds.
function colour({ config }) {
  return config.color?.mode === 'fixed' ? { color: theme.visualization.getColorByName(config.color.fixedColor) } : {};
}

function Visual({ panel, answer, width, height }) {
  switch (panel.type) {
    case 'timeseries':
      return <Lines {...{ panel, answer, width, height }} />;
    case 'stat':
      return (
        <Numbers
          {...{ panel, answer, width, height }}
          orientation={panel.options.orientation}
          renderValue={({ value, width, height }) => (
            <BigValue
              value={value.display}
              {...{ width, height, theme }}
              colorMode={panel.options.colorMode}
              graphMode={panel.options.graphMode}
              justifyMode={panel.options.justifyMode}
              textMode={panel.options.textMode}
              count={answer.length}
            />
          )}
        />
      );
    case 'bargauge':
      return (
        <Numbers
          {...{ panel, answer, width, height }}
          orientation={panel.options.orientation}
          renderValue={({ value, width, height, alignmentFactors }) => (
            <BarGauge
              value={value.display}
              field={value.field}
              display={value.processor}
              {...{ width, height, theme, alignmentFactors }}
              orientation={panel.options.orientation}
              displayMode={panel.options.displayMode}
              valueDisplayMode={panel.options.valueMode}
              showUnfilled={panel.options.showUnfilled}
              namePlacement={panel.options.namePlacement}
              itemSpacing={8}
              lcdCellWidth={12}
            />
          )}
        />
      );
    default:
      throw new Error(`no such panel here: ${panel.type}`);
  }
}

function Panel({ panel }) {
  const [answer, setAnswer] = useState(null);
  const { x, y, w, h } = panel.gridPos;
  useEffect(() => {
    frames(panel, theme).then(
      ({ frames, silent }) => {
        if (silent.length > 0) {
          state.empty[panel.title] = silent;
        }
        setAnswer(frames);
      },
      (error) => {
        state.errors.push(`${panel.title}: ${error.message}`);
        setAnswer([]);
      }
    );
  }, [panel]);
  useEffect(() => {
    if (answer) {
      // Two frames later the canvas has been painted.
      requestAnimationFrame(() => requestAnimationFrame(() => state.drawn.push(panel.title)));
    }
  }, [answer, panel]);
  const place = { position: 'absolute', left: margin + x * column, top: margin + y * line };
  return (
    <div style={place}>
      <PanelChrome title={panel.title} description={panel.description} width={w * column - margin} height={h * line - margin}>
        {(width, height) => (
          <Guard title={panel.title}>
            {answer?.length > 0 && <Visual {...{ panel, answer, width, height }} />}
            {answer?.length === 0 && <div style={{ padding: 16 }}>{panel.fieldConfig.defaults.noValue}</div>}
          </Guard>
        )}
      </PanelChrome>
    </div>
  );
}

function Row({ panel }) {
  const style = { position: 'absolute', left: margin, top: margin + panel.gridPos.y * line + 6, margin: 0 };
  return <h4 style={style}>{panel.title}</h4>;
}

function Board({ board }) {
  const bottom = Math.max(...board.panels.map(({ gridPos: { y, h } }) => y + h));
  return (
    <div style={{ position: 'relative', width: 1600, height: bottom * line + margin }}>
      {board.panels.map((panel) =>
        panel.type === 'row' ? <Row key={panel.id} panel={panel} /> : <Panel key={panel.id} panel={panel} />
      )}
    </div>
  );
}

const name = new URLSearchParams(location.search).get('board');
const board = await (await fetch(`/dashboards/${name}.json`)).json();
document.body.style.margin = 0;
document.body.style.background = theme.colors.background.canvas;
createRoot(document.getElementById('root')).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <Board board={board} />
  </ThemeContext.Provider>
);
state.wanted = board.panels.filter((p) => p.type !== 'row').length;
