// Stands in for Node's modules that libraries name and a browser does not have.
export class Transform {}
export default {};
