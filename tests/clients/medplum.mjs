// What a program that uses @medplum/core sees of an asynchronous operation, as JSON, one line each.
// Usage: node medplum.mjs FOLDER BASE_URL FHIR_PATH export|OPERATION [POLL_MS]

import { createRequire } from 'node:module';

const [folder, baseUrl, fhirUrlPath, what, period] = process.argv.slice(2);
const { MedplumClient } = createRequire(folder)('@medplum/core');

function say(value) {
  process.stdout.write(JSON.stringify(value) + '\n');
}

const client = new MedplumClient({
  baseUrl,
  fhirUrlPath,
  accessToken: 'a-token',
  fetch: async (url, options) => {
    const answer = await fetch(url, options);
    say({
      method: options.method,
      url: String(url),
      body: options.body ?? null,
      prefer: options.headers?.Prefer ?? null,
      status: answer.status,
    });
    return answer;
  },
});

const options = { pollStatusOnAccepted: true };
if (period) {
  options.pollStatusPeriod = Number(period);
}
try {
  const result =
    what === 'export'
      ? await client.bulkExport('', 'Patient', undefined, options)
      : await client.startAsyncRequest(`${baseUrl}${fhirUrlPath}/${what}`, options);
  say({ result });
} catch (error) {
  say({ error: String(error.message), outcome: error.outcome ?? null });
}
