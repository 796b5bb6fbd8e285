// Asks Prometheus what a panel asks, and makes of the answer what Grafana's
// panels draw: fields with the panel's configuration, overrides included.
import { FieldType, getDisplayProcessor } from '@grafana/data';

const variables = new URLSearchParams(location.search);

function substitute(text) {
  return text
    .replaceAll('$__rate_interval', variables.get('rate_interval'))
    .replaceAll(/\$\{?(namespace|pool|pod)\}?/g, (_, name) => variables.get(name));
}

async function ask(path, parameters) {
  const response = await fetch(`/api/v1/${path}?${new URLSearchParams(parameters)}`);
  const answer = await response.json();
  if (answer.status !== 'success') {
    throw new Error(`${parameters.query}: ${answer.error}`);
  }
  return answer.data.result;
}

export const range = {
  from: Number(variables.get('from')),
  to: Number(variables.get('to')),
  step: Number(variables.get('step')),
};

function legend(format, labels) {
  return format
    .replaceAll(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => labels[name] ?? '')
    .replaceAll(/ +/g, ' ')
    .trim();
}

// thresholds begin at minus infinity, which JSON cannot say.
function thresholds({ mode, steps }) {
  return { mode, steps: steps.map((s) => ({ ...s, value: s.value ?? -Infinity })) };
}

// mappings without an index are not in any order.
function mappings(list = []) {
  return list.map((m) => ({
    ...m,
    options: Object.fromEntries(Object.entries(m.options).map(([value, result], index) => [value, { index, ...result }])),
  }));
}

function override(config, property) {
  if (property.id.startsWith('custom.')) {
    config.custom[property.id.slice('custom.'.length)] = property.value;
  } else {
    config[property.id] = property.value;
  }
}

function matches({ id, options }, name) {
  switch (id) {
    case 'byName':
      return options === name;
    case 'byRegexp':
      return new RegExp(options.slice(1, -1)).test(name);
    default:
      throw new Error(`no such matcher here: ${id}`);
  }
}

function configOf(panel, name) {
  const { defaults, overrides = [] } = panel.fieldConfig;
  const config = {
    ...defaults,
    displayName: name,
    thresholds: thresholds(defaults.thresholds),
    mappings: mappings(defaults.mappings),
    custom: {
      axisPlacement: 'auto',
      axisColorMode: 'text',
      gradientMode: 'none',
      lineInterpolation: 'linear',
      pointSize: 5,
      scaleDistribution: { type: 'linear' },
      stacking: { mode: 'none', group: 'A' },
      hideFrom: { legend: false, tooltip: false, viz: false },
      ...defaults.custom,
    },
  };
  for (const { matcher, properties } of overrides) {
    if (matches(matcher, name)) {
      properties.forEach((p) => override(config, p));
    }
  }
  return config;
}

// frames are the panel's answer, one for each series.
export async function frames(panel, theme) {
  const drawn = panel.type === 'timeseries';
  const answers = await Promise.all(
    panel.targets.map((t) =>
      drawn
        ? ask('query_range', { query: substitute(t.expr), start: range.from, end: range.to, step: range.step })
        : ask('query', { query: substitute(t.expr), time: range.to })
    )
  );
  const silent = panel.targets.filter((_, i) => answers[i].length === 0).map((t) => t.expr);
  let index = 0;
  const all = answers.flatMap((result, i) =>
    result.map((series) => {
      const name = legend(panel.targets[i].legendFormat, series.metric);
      const samples = series.values ?? [series.value];
      const value = {
        name: 'Value',
        type: FieldType.number,
        labels: series.metric,
        config: configOf(panel, name),
        values: samples.map(([, text]) => Number(text.replace('Inf', 'Infinity'))),
        state: { seriesIndex: index++, displayName: name },
      };
      value.display = getDisplayProcessor({ field: value, theme, timeZone: 'utc' });
      const time = { name: 'Time', type: FieldType.time, config: {}, values: samples.map(([at]) => at * 1000) };
      time.display = getDisplayProcessor({ field: time, theme, timeZone: 'utc' });
      return { refId: panel.targets[i].refId, name, length: samples.length, fields: [time, value] };
    })
  );
  return { frames: all, silent };
}
