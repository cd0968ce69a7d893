import {simulate} from './build/test/instances/simulator.js'
const L=(name,r,c)=>({name,rate:r/1000,capacity:c})
for(const depth of [30,60,120,300]) for(const st of [[L('own',400,1600),L('all',100,400)],[L('all',100,400)]]) for (const d of [.25,12]){
 const sim=await simulate({stack:st,count:1,sources:[{instance:0,keys:st.map(l=>l.name),load:{kind:'saturated',depth}}],distance:()=>d})
 await sim.run(10000)
 const late=sim.releases.filter(r=>r.at>5000).length
 console.log(st.map(l=>l.rate*1000).join('+'),'depth',depth,'d',d,'releases',sim.releases.length,'of 1000; in 5..10 s',late,'waiting',sim.waiting,'rejected',sim.rejected,[...sim.connections[0].calls.verbs].join(' '))
}
